"""The move from a LangGraph agent to the kernel, one turn at a time, with proof.

`create_agent` and `create_react_agent` stand in for LangChain's and LangGraph's; `Switches` say which turns go to the
kernel, the envelope which can, and a `TurnLedger` which did. `record` and `replay` show beforehand what would differ.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endstop.cutover._recorder import record
    from endstop.cutover._replay_view import ReplayReport
    from endstop.cutover._shadow import settle_shadows
    from endstop.cutover.agents import (
        create_agent,  # pyright: ignore[reportUnknownVariableType]  # as LangChain types it
        create_react_agent,  # pyright: ignore[reportUnknownVariableType, reportDeprecated]  # people still run it
        cut_over,
    )
    from endstop.cutover.envelope import Call, Eligible, Refusal, check
    from endstop.cutover.errors import AgentError, RecursionExhaustedError
    from endstop.cutover.facade import CutoverAgent
    from endstop.cutover.ledger import (
        Fallbacks,
        MemoryTurnLedger,
        SqliteTurnLedger,
        TurnLedger,
        TurnRecord,
        default_ledger,
        fallbacks,
        open_ledger,
        use_ledger,
    )
    from endstop.cutover.presets import AgentConfig, legacy_graph
    from endstop.cutover.projection import AgentResponse, StreamChunk, as_chunk, as_legacy_messages, as_response
    from endstop.cutover.rehearsal import replay_agent
    from endstop.cutover.rounds import Rounds, rounds_for_graph, rounds_for_recursion_limit
    from endstop.cutover.switches import Switches, default_switches, use_switches

_HOMES = {
    "agents": ("create_agent", "create_react_agent", "cut_over"),
    "envelope": ("Call", "Eligible", "Refusal", "check"),
    "errors": ("AgentError", "RecursionExhaustedError"),
    "facade": ("CutoverAgent",),
    "ledger": (
        "Fallbacks",
        "MemoryTurnLedger",
        "SqliteTurnLedger",
        "TurnLedger",
        "TurnRecord",
        "default_ledger",
        "fallbacks",
        "open_ledger",
        "use_ledger",
    ),
    "presets": ("AgentConfig", "legacy_graph"),
    "projection": ("AgentResponse", "StreamChunk", "as_chunk", "as_legacy_messages", "as_response"),
    "_recorder": ("record",),
    "_replay_view": ("ReplayReport",),
    "_shadow": ("settle_shadows",),
    "rehearsal": ("replay_agent",),
    "rounds": ("Rounds", "rounds_for_graph", "rounds_for_recursion_limit"),
    "switches": ("Switches", "default_switches", "use_switches"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AgentConfig",
    "AgentError",
    "AgentResponse",
    "Call",
    "CutoverAgent",
    "Eligible",
    "Fallbacks",
    "MemoryTurnLedger",
    "RecursionExhaustedError",
    "Refusal",
    "ReplayReport",
    "Rounds",
    "SqliteTurnLedger",
    "StreamChunk",
    "Switches",
    "TurnLedger",
    "TurnRecord",
    "as_chunk",
    "as_legacy_messages",
    "as_response",
    "check",
    "create_agent",
    "create_react_agent",
    "cut_over",
    "default_ledger",
    "default_switches",
    "fallbacks",
    "legacy_graph",
    "open_ledger",
    "record",
    "replay_agent",
    "rounds_for_graph",
    "rounds_for_recursion_limit",
    "settle_shadows",
    "use_ledger",
    "use_switches",
]


def __getattr__(name: str) -> object:
    """A name of the package, its module imported: the projection is of use where LangGraph is not installed."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
