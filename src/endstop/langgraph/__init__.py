"""The LangGraph side: see what a graph can do under its limits, and bound graphs that run today, unchanged.

Needs the extra `endstop[langgraph]`. Nothing of the kernel imports it.
"""

from endstop.langgraph._audits import Audit, Costs, Cycle, EffectiveLimit, Finding, Rounds, Worst, WorstCase
from endstop.langgraph._guards import guarded
from endstop.langgraph._ledger import Ledger, MemoryLedger
from endstop.langgraph._limits import GraphEnding, GraphLimits, GraphSpent
from endstop.langgraph.audit import audit
from endstop.langgraph.bound import bound
from endstop.langgraph.middleware import BoundMiddleware

__all__ = [
    "Audit",
    "BoundMiddleware",
    "Costs",
    "Cycle",
    "EffectiveLimit",
    "Finding",
    "GraphEnding",
    "GraphLimits",
    "GraphSpent",
    "Ledger",
    "MemoryLedger",
    "Rounds",
    "Worst",
    "WorstCase",
    "audit",
    "bound",
    "guarded",
]
