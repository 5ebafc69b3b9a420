"""What the tests of pauses share: an agent whose tools ask people and note what they did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from endstop import (
    Agent,
    AgentResult,
    Cancelled,
    Decision,
    Done,
    ErrorEvent,
    Event,
    Interrupt,
    MemoryEffects,
    Message,
    ModelTurn,
    Pause,
    PlanLimits,
    ToolCall,
    ToolContext,
    ToolFatal,
    ToolReturn,
    ask_user,
    tool,
)
from endstop.models.scripted import Forever, ScriptedModel, ScriptStep, call, turn

APPROVE = Decision(type="approve")
INTEGER = {"type": "integer"}
FREE = PlanLimits(max_model_rounds=None)
"""No limits of its own."""


class Clock(MemoryEffects):
    """The wall clock of a test: it stands still until it is moved."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


class Shop:
    """An agent whose tools note in `done` what they did."""

    def __init__(self, *steps: ScriptStep | Forever, limits: PlanLimits | None = None) -> None:
        self.done: list[str] = []
        self.clock = Clock()
        self.model = ScriptedModel(steps)
        tools = [self.look, tool(requires_approval=True)(self.pay), self.book, self.offer, self.burn, ask_user]
        self.agent = Agent(self.model, tools=tools, limits=limits or PlanLimits(), effects=self.clock)

    async def look(self, n: int) -> str:
        """Look at a page."""
        self.done.append(f"look {n}")
        return f"page {n}"

    async def pay(self, amount: int) -> str:
        """Pay an amount."""
        self.done.append(f"pay {amount}")
        return f"paid {amount}"

    async def book(self, seats: int, context: ToolContext) -> str:
        """Book seats, with two questions first."""
        self.done.append(f"book with {list(context.answers)}")
        if len(context.answers) < 2:
            raise Interrupt(f"question {len(context.answers) + 1}?", schema=INTEGER)
        return f"booked {seats} for {context.answers[0]} and {context.answers[1]}"

    def offer(self, item: str, context: ToolContext) -> str:
        """Offer an item; the answer is taken for a minute."""
        if not context.answers:
            raise Interrupt(f"take {item}?", expires_in_seconds=60)
        return f"{item}: {context.answers[0]}"

    async def burn(self) -> str:
        """End the run."""
        raise ToolFatal("fire")


def pay(amount: int) -> ToolCall:
    return call("pay", {"amount": amount}, call_id=f"pay{amount}")


def look(n: int) -> ToolCall:
    return call("look", {"n": n}, call_id=f"look{n}")


def book(seats: int) -> ToolCall:
    return call("book", {"seats": seats}, call_id=f"book{seats}")


def ask(question: str) -> ToolCall:
    return call("ask_user", {"question": question, "schema": INTEGER}, call_id="ask")


def stored(result: AgentResult[str]) -> AgentResult[str]:
    """The result as another process reads it; it is equal."""
    read = AgentResult.from_json(result.to_json())
    assert read == result
    return read


def pause_of(result: AgentResult[str], call_id: str) -> Pause:
    return next(pause for pause in result.pauses if pause.call_id == call_id)


def answers_to(result: AgentResult[str], answer: object) -> dict[str, object]:
    """The same answer to all that is asked."""
    return {pause.pause_id: answer for pause in result.pauses}


def returns(result: AgentResult[str]) -> dict[str, str]:
    """What the tools returned, by call id."""
    return {m.call_id: m.content for m in result.messages if isinstance(m, ToolReturn)}


def assert_all_answered(messages: Sequence[Message]) -> None:
    """Every call has exactly one return before anything else is said; people answer in an order of their own."""
    waiting: list[str] = []
    ids: list[str] = []
    for message in messages:
        if isinstance(message, ToolReturn):
            waiting.remove(message.call_id)
            continue
        assert not waiting, f"unanswered before {message}: {waiting}"
        if isinstance(message, ModelTurn):
            waiting = [asked.call_id for asked in message.tool_calls]
            ids += waiting
    assert not waiting, f"never answered: {waiting}"
    assert all(ids), "a call has no id"
    assert len(set(ids)) == len(ids), f"an id was given twice: {ids}"


def delegating(*tasks: str, to: str = "helper") -> ModelTurn:
    """A turn that hands out tasks, all at once."""
    return turn(calls=[call(to, {"task": task}, call_id=task) for task in tasks])


def ends(events: Sequence[Event]) -> list[tuple[str, tuple[str, ...]]]:
    """Which run ended how, in order."""
    return [(event.kind, event.path) for event in events if isinstance(event, Done | Cancelled | ErrorEvent)]
