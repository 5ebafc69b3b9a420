"""A research assistant on LangGraph, with loops that its own guards bound one by one and the step budget as a whole.

`graph` is the assistant with a scripted model, so that importing it needs neither key nor network:
`endstop audit examples/research_assistant:graph` reads it. `build_graph` makes one that works.
"""

from __future__ import annotations

from endstop.langgraph import guarded

from .graph import build_graph
from .main import bench_table, demo
from .state import ResearchSettings, ResearchState

__all__ = ["ResearchSettings", "ResearchState", "bench_table", "build_graph", "demo", "graph"]

graph = guarded(build_graph(), caps=ResearchSettings().caps, fan_out=ResearchSettings().fan_out)
