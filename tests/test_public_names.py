"""The names that users import from `endstop`: a change here is a change for them, so it is made on purpose."""

from __future__ import annotations

from types import ModuleType

import endstop
import endstop.cutover
import endstop.langgraph

PUBLIC_NAMES = [
    "Agent",
    "AgentResult",
    "AskUser",
    "Budget",
    "Cancelled",
    "ConfigError",
    "ContextOverflow",
    "Decision",
    "Delta",
    "Done",
    "Effects",
    "Ending",
    "EndstopError",
    "ErrorEvent",
    "Event",
    "FilePart",
    "GenaiPrices",
    "Hold",
    "ImagePart",
    "Interrupt",
    "InterruptEvent",
    "JsonObject",
    "LimitExceeded",
    "LimitHit",
    "LimitWarning",
    "LoopDetected",
    "LoopPolicy",
    "MemoryEffects",
    "Message",
    "Model",
    "ModelError",
    "ModelRequest",
    "ModelTurn",
    "OutputInvalid",
    "Part",
    "Pause",
    "PlanLimits",
    "PostModel",
    "Price",
    "PriceUnknown",
    "Prices",
    "Pricing",
    "ResumeError",
    "Resumed",
    "Retrieval",
    "Retrieved",
    "RetrievedEvent",
    "RetryPolicy",
    "RoundStarted",
    "RunError",
    "RunState",
    "RunStream",
    "Spent",
    "Started",
    "StateError",
    "TextDelta",
    "TextPart",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolCallEvent",
    "ToolContext",
    "ToolFatal",
    "ToolResultEvent",
    "ToolReturn",
    "ToolSpec",
    "Truncated",
    "Usage",
    "UsageError",
    "UsageEvent",
    "UserMessage",
    "ask_user",
    "dump_messages",
    "load_messages",
    "tool",
]


def test_the_public_names_are_these() -> None:
    """Nothing is added or lost in passing."""
    assert sorted(endstop.__all__) == PUBLIC_NAMES


def test_no_public_name_is_listed_twice() -> None:
    """A name that stands twice hides one that is missing."""
    assert len(set(endstop.__all__)) == len(endstop.__all__)


def test_every_public_name_can_be_had() -> None:
    """With all extras installed, each name in `__all__` is there."""
    assert [name for name in endstop.__all__ if not hasattr(endstop, name)] == []


def test_nothing_else_looks_public() -> None:
    """What is no module and has no underscore is in `__all__`, or it would be used by accident."""
    visible = {name for name, value in vars(endstop).items() if not isinstance(value, ModuleType)}
    assert {name for name in visible if not name.startswith("_")} - {"annotations"} <= set(endstop.__all__)


def test_the_langgraph_side_has_these_names() -> None:
    """What users of graphs import from `endstop.langgraph`; the step budget has a module of its own."""
    assert endstop.langgraph.__all__ == [
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
    assert [name for name in endstop.langgraph.__all__ if not hasattr(endstop.langgraph, name)] == []


def test_the_cutover_has_these_names() -> None:
    """What those who move an agent import from `endstop.cutover`; each is imported when it is first asked for."""
    assert endstop.cutover.__all__ == [
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
    assert [name for name in endstop.cutover.__all__ if not hasattr(endstop.cutover, name)] == []
