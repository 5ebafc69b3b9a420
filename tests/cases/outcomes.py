"""A case: a symptom that people report, as it is today and as it is with endstop, both run and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from typing import TypeAlias

from langchain.agents.middleware import ToolCallLimitMiddleware
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langgraph.errors import GraphRecursionError

from tests.cases.fakes import CaseModel, Counted, ProviderRefused, Runaway

ASK = {"messages": [("user", "How many orders are there?")]}
"""What every agent here is asked."""

FAR = {"recursion_limit": 10_000}
"""A limit as it is by default in the newest LangGraph, written out so that every version has it."""

ON_THREAD = {"configurable": {"thread_id": "one"}}

NOT_ENDED = "not ended"
"""The model was called as often as the case allows, and the run went on."""

ANSWERED = "ended, unmarked"
"""A program takes it for a run that did what it was asked for."""

LOOP, BUDGET, TOOL_LIMIT = (f"ended, marked {stop_reason}" for stop_reason in ("loop", "budget", "tool_limit"))
"""With endstop the state says that the run was cut, and why."""

TOLD = ("stop_reason", "reason", "rung")

PAUSED = "waits for a person"

OUT_OF_STEPS = GraphRecursionError.__name__

REFUSED = ProviderRefused.__name__


OLD_DEFAULT = tuple(int(part) for part in version("langgraph").split(".")) < (1, 0, 6)
"""Before LangGraph 1.0.6 the limit of a run that was given none is 25; later versions have thousands."""

OLD_TOOL_LIMIT = signature(ToolCallLimitMiddleware).parameters["exit_behavior"].default == "end"
"""Langchain 1.0.0: the middleware looks before the model is called and not after, and never lets it go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, as measured. `said` is what its caller can read: the answer, or the cause that is named."""

    end: str
    model_calls: int | None = None
    tool_calls: int | None = None
    said: str = ""

    def __str__(self) -> str:
        counts = {"model call": self.model_calls, "tool call": self.tool_calls}
        told = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count is not None)
        return ": ".join(filter(None, ["; ".join(filter(None, [told, self.end])), self.said]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A symptom, what of endstop to use, and the two runs."""

    symptom: str
    use: str
    today: Callable[[], Outcome]
    ours: Callable[[], Outcome]


READING_ORDER = (
    "no_limit_set",
    "same_calls_again",
    "repeated_failing_query",
    "cut_arguments",
    "repeated_write",
    "answer_not_noticed",
    "two_agents_talking",
    "tool_call_required",
    "rejected_call",
    "growing_context",
    "limit_of_one_node",
    "counting_steps",
    "limits_that_do_not_arrive",
    "parallel_calls",
    "unanswered_calls",
    "error_mid_stream",
    "wrapping_up",
)
"""The files with cases: what does not stop, then limits that are not what they seem, then how a run ends."""

State: TypeAlias = Mapping[str, object]


def measured(run: Callable[[], State], model: CaseModel, *tools: Counted) -> Outcome:
    """Runs it and counts, whatever comes of it; tool calls only where it is told of tools."""
    said = ""
    try:
        state = run()
    except Runaway:
        end = NOT_ENDED
    except (GraphRecursionError, ProviderRefused, ToolCallLimitExceededError, ValueError) as error:
        end = type(error).__name__
    else:
        end, said = told_by(state)
    tool_calls = sum(len(tool.made) for tool in tools) if tools else None
    return Outcome(end=end, model_calls=model.calls, tool_calls=tool_calls, said=said)


def told_by(state: State) -> tuple[str, str]:
    """How a run ended that came to its end, and what its caller is told."""
    if "__interrupt__" in state:
        return PAUSED, ""
    if (ending := state.get("endstop")) is not None:
        # `bound` gives the record, and `BoundMiddleware`, which keeps it in the checkpoints, its data.
        told = ending if isinstance(ending, dict) else {name: getattr(ending, name) for name in TOLD}
        return f"ended, marked {told['stop_reason']}", f"{told['reason']} ({told['rung']})"
    messages = state["messages"]
    assert isinstance(messages, list)
    return ANSWERED, str(messages[-1].text)


def all_cases() -> list[Case]:
    """Every case of this folder, in the order in which they are best read."""
    return [case for name in READING_ORDER for case in import_module(f"tests.cases.test_{name}").CASES]
