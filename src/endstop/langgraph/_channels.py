"""What `BoundMiddleware` keeps of a run in the state of its graph, so that every checkpoint has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import OmitFromInput, PrivateStateAttr
from langgraph.channels import UntrackedValue

from endstop._limits import LimitHit, Spent
from endstop._loops import LoopState
from endstop._state import as_data, as_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from endstop._messages import JsonObject

RECORD = "endstop_run"
LEG = "endstop_leg"
ENDING = "endstop"
"""The key of the state under which a run that did not complete says how it ended."""

_FORMAT = "endstop/agent-run"

WrapUp: TypeAlias = Literal["none", "asked", "answered"]


class Head(NamedTuple):
    """What tells one stored record of a run from another."""

    run_id: str
    turn: str
    tip: str
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run must not forget between its steps: what the newest visit of the model node left, and what came since.

    `turn` is the id of the message that the run began with. `tip` is another with every visit of the model
    node; `steps` counts the additions since, `started` the tool calls in them, and `refused` is the limit
    on a single tool that kept one from running. `spent` is everything so far, `thread` what the runs of the
    thread have spent together. `effects` are the tools that were started and are not read-only. `hit` is the
    limit that ends the run, `wrap_up` whether its final answer was asked for and had, `ended` that it has
    handed over its best. `tools` are the names that the model was offered, `observed` is the id of the model's
    turn that the loop detector was shown last, `summary` that of the summary whose making was charged.
    """

    run_id: str
    turn: str
    tip: str = ""
    steps: int = 0
    started: int = 0
    refused: LimitHit | None = None
    spent: Spent = field(default_factory=Spent)
    thread: Spent = field(default_factory=Spent)
    effects: tuple[str, ...] = ()
    hit: LimitHit | None = None
    wrap_up: WrapUp = "none"
    ended: bool = False
    tools: tuple[str, ...] = ()
    loops: LoopState = field(default_factory=LoopState)
    observed: str | None = None
    summary: str = ""
    note: str = ""

    @property
    def head(self) -> Head:
        """What tells it from another."""
        return Head(self.run_id, self.turn, self.tip, self.steps)

    def to_data(self) -> JsonObject:
        """The record as the channel holds it: plain data, which every checkpointer can write."""
        return {"record": as_data(self), "more": []}

    @classmethod
    def from_data(cls, data: JsonObject) -> RunRecord | None:
        """The record that the channel holds with all that was added to it; `None` where it holds none.

        Raises:
            StateError: it holds something else.
        """
        if not data:
            return None
        record = as_type(cls, data["record"], _FORMAT)
        for more in as_type(list[Addition], data["more"], _FORMAT):
            record = record.plus(more)
        return record

    def plus(self, more: Addition) -> RunRecord:
        """The record with what a tool call adds. Additions commute; one to another run came too late for this one."""
        if more.run_id != self.run_id:
            return self
        return replace(
            self,
            steps=self.steps + 1,
            started=self.started + more.spent.tool_calls,
            spent=added(self.spent, more.spent),
            thread=added(self.thread, replace(more.spent, seconds=more.thread_seconds)),
            effects=tuple(dict.fromkeys((*self.effects, *more.effects))),
            hit=self.hit or more.hit,
            refused=self.refused or more.refused,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What a tool call adds to the record of its run.

    `spent.seconds` are those of the whole run until then, `thread_seconds` those of the thread. `hit` is a
    limit that ends the run, `refused` one on a single tool.
    """

    run_id: str
    spent: Spent
    thread_seconds: float = 0.0
    effects: tuple[str, ...] = ()
    hit: LimitHit | None = None
    refused: LimitHit | None = None

    def to_data(self) -> JsonObject:
        """The addition as the channel takes it."""
        return {"more": [as_data(self)]}


def joined(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """The reducer of the channel: a whole record replaces the one before, an addition is put beside it.

    The tool calls of a batch write at once, and none may be lost, also where some of them were made before a pause
    and the rest after it in another process.
    """
    if "record" in right:
        return right
    return {**left, "more": [*left["more"], *right["more"]]} if left else {}


def added(spent: Spent, more: Spent) -> Spent:
    """Both together. Time is that of the later one: what runs at once takes it once."""
    return Spent(
        model_rounds=spent.model_rounds + more.model_rounds,
        model_calls=spent.model_calls + more.model_calls,
        tool_calls=spent.tool_calls + more.tool_calls,
        tools=Counter(spent.tools) + Counter(more.tools),
        input_tokens=spent.input_tokens + more.input_tokens,
        output_tokens=spent.output_tokens + more.output_tokens,
        cost=spent.cost + more.cost,
        seconds=max(spent.seconds, more.seconds),
        unmeasured=spent.unmeasured + more.unmeasured,
        underestimated_tokens=spent.underestimated_tokens + more.underestimated_tokens,
        price_source=more.price_source or spent.price_source,
    )


def head_of(data: Mapping[str, Any]) -> Head | None:
    """The head of the record that the channel holds; `None` where it holds none."""
    if not data:
        return None
    record = data["record"]
    return Head(record["run_id"], record["turn"], record["tip"], len(data["more"]))


class BoundState(AgentState[Any]):
    """The state of an agent that `BoundMiddleware` bounds.

    `endstop` is how the newest run ended, if it did not complete. The counters are in the checkpoints; that a leg is
    under way is not, so that each leg (an input, or a resume) finds it unset.
    """

    endstop: NotRequired[Annotated[dict[str, Any] | None, OmitFromInput]]
    endstop_run: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, joined]]
    endstop_leg: NotRequired[Annotated[bool, PrivateStateAttr, UntrackedValue(bool, guard=False)]]
