"""The public API as a typed program uses it: read by mypy and pyright (`make check`), never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeVar, assert_never, assert_type

import endstop
from endstop import (
    Agent,
    AgentResult,
    Budget,
    Decision,
    Delta,
    Effects,
    Ending,
    Event,
    FilePart,
    Hold,
    ImagePart,
    Interrupt,
    LimitExceeded,
    LimitHit,
    LoopPolicy,
    MemoryEffects,
    Message,
    Model,
    ModelError,
    ModelRequest,
    ModelTurn,
    Part,
    Pause,
    PlanLimits,
    PostModel,
    Price,
    Prices,
    Pricing,
    Retrieval,
    Retrieved,
    RetryPolicy,
    RunState,
    RunStream,
    Spent,
    TextPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolReturn,
    Usage,
    UserMessage,
    ask_user,
    dump_messages,
    load_messages,
    tool,
)
from endstop.models.scripted import ReplayModel, ScriptedModel

T = TypeVar("T")

names: list[str] = list(endstop.__all__)


@dataclass
class Report:
    """An output type."""

    title: str


@dataclass
class Shop:
    """What tools are given as `deps`."""

    is_open: bool


# -- the seams: what a user writes fits them -------------------------------------------------------


class MyModel:
    """A model of one's own."""

    @property
    def name(self) -> str:
        return "mine"

    async def respond(self, request: ModelRequest, on_delta: Callable[[Delta], Awaitable[None]]) -> ModelTurn:
        assert_type(request.messages, Sequence[Message])
        assert_type(request.max_output_tokens, int | None)
        await on_delta(Delta(text="Hello", kind="text"))
        return ModelTurn(text="Hello", usage=Usage(input_tokens=1, output_tokens=1))


class MyEffects:
    """A journal of one's own."""

    async def step(self, key: str, do: Callable[[], Awaitable[T]]) -> T:
        return await do()

    async def parallel(self, steps: Sequence[tuple[str, Callable[[], Awaitable[T]]]]) -> list[T]:
        return [await do() for _, do in steps]

    def now(self) -> datetime:
        return datetime.now(UTC)


class MyPrices:
    """A price table of one's own."""

    def price_of(self, model: str) -> Pricing | None:
        return Price(input_per_million=Decimal(1), output_per_million=Decimal(2)) if model == "mine" else None


class MyStages:
    """Both stages, which may be one object."""

    async def retrieve(self, prompt: str) -> Retrieved:
        return Retrieved(text=prompt, counts={"admitted": 1})

    async def apply(self, ops: Sequence[Mapping[str, object]]) -> None:
        assert_type(ops[0]["op"], object)


models: list[Model] = [MyModel(), ScriptedModel(["Hello"]), ReplayModel([])]
effects: list[Effects] = [MyEffects(), MemoryEffects()]
prices: list[Prices] = [MyPrices(), endstop.GenaiPrices()]
retrieval: Retrieval = MyStages()
post_model: PostModel = MyStages()


# -- tools: functions of any kind ------------------------------------------------------------------


@tool
def search(query: str, limit: int = 10) -> list[str]:
    """Search."""
    return [query] * limit


@tool(read_only=True, timeout_seconds=2.5, retries=1, requires_approval=True)
async def look(ctx: ToolContext[Shop], thing: Literal["door", "window"]) -> bool:
    """Look."""
    assert_type(ctx.deps, Shop)
    assert_type(ctx.budget, Budget)
    if not ctx.deps.is_open:
        raise Interrupt(f"May I open the {thing}?", schema={"type": "boolean"})
    return ctx.deps.is_open


def plain(ctx: ToolContext) -> object:
    """A context without a type for `deps`."""
    return assert_type(ctx.deps, object)


assert_type(search, Tool)
assert_type(look, Tool)
assert_type(search.name, str)


# -- agents: the output type is inferred -----------------------------------------------------------

text_agent = Agent(MyModel())
assert_type(text_agent, Agent[str])
assert_type(Agent(MyModel(), output_type=str), Agent[str])
assert_type(Agent(MyModel(), output_type=int), Agent[int])
assert_type(Agent(MyModel(), output_type=Report), Agent[Report])
assert_type(Agent(MyModel(), output_type=list[Report]), Agent[list[Report]])
assert_type(Agent(MyModel(), output_type=dict[str, int]), Agent[dict[str, int]])

whole = Agent(
    MyModel(),
    tools=[search, look, plain, ask_user, text_agent.as_tool(name="helper")],
    instructions="Be brief.",
    output_type=Report,
    limits=PlanLimits(
        max_model_rounds=5,
        max_model_calls=None,
        tool_limits={"search": 3},
        max_cost=0.5,
        max_seconds=60,
        deadline=datetime.now(UTC) + timedelta(minutes=5),
        on_limit="stop",
        assume_price=Price(input_per_million=Decimal(1), output_per_million=Decimal(2)),
    ),
    name="researcher",
    output_repairs=1,
    loops=LoopPolicy(repeats=4),
    retry=RetryPolicy(max_attempts=2),
    retrieval=MyStages(),
    post_model=MyStages(),
    prices=MyPrices(),
    effects=MyEffects(),
)
assert_type(whole, Agent[Report])
assert_type(whole.as_tool(), Tool)
Agent(MyModel(), loops=None, extraction_tag=None)


# -- runs ------------------------------------------------------------------------------------------


async def run() -> None:
    """Every way to run and to go on."""
    result = await text_agent.run("Go")
    assert_type(result, AgentResult[str])
    assert_type(result.output, str | None)
    typed = await whole.run(
        [TextPart(text="See"), ImagePart(url="https://example.com/a.png"), FilePart(name="a.pdf", data=b"")],
        history=result.messages,
        limits=PlanLimits(),
        budget=Budget(PlanLimits(max_model_calls=20)),
        deps=Shop(is_open=True),
        run_id="r1",
    )
    assert_type(typed.output, Report | None)
    assert_type(whole.run_sync("Go"), AgentResult[Report])
    assert_type(await whole.resume(typed, limits=PlanLimits(max_model_rounds=20)), AgentResult[Report])
    assert_type(await whole.resume(typed.state), AgentResult[Report])
    answers: dict[str, object] = {pause.pause_id: Decision(type="approve") for pause in typed.pauses}
    async with whole.resume_stream(typed, answers=answers, deps=Shop(is_open=True)) as stream:
        assert_type(stream, RunStream[Report])
        async for event in stream:
            assert_type(event, Event)
    assert_type(stream.result.output, Report | None)
    async with text_agent.stream("Go") as text_stream:
        text_stream.cancel()
    assert_type(text_stream.result, AgentResult[str])
    assert_type(text_stream.state, RunState)


def read(result: AgentResult[Report]) -> None:
    """A result says everything in types."""
    assert_type(result.text, str)
    assert_type(result.stop_reason, Literal["completed", "tool_limit", "budget", "loop", "paused", "cancelled"])
    assert_type(result.ending, Ending | None)
    assert_type(result.truncated, bool)
    assert_type(result.messages, tuple[Message, ...])
    assert_type(result.spent, Spent)
    assert_type(result.spent.cost, Decimal)
    assert_type(result.duration_ms, float)
    assert_type(result.pauses, tuple[Pause, ...])
    if result.ending is not None:
        assert_type(result.ending.rung, Literal["model_answer", "last_text", "tool_digest", "empty"])
        assert_type(result.ending.pending, tuple[ToolCall, ...])
    # A result of a narrower output is one of a wider.
    show_any(result)


def show_any(result: AgentResult[object]) -> str:
    """A result of any output."""
    return str(result)


def store(result: AgentResult[Any]) -> None:
    """What is stored comes back with the type that is asked for."""
    document: str = result.to_json()
    assert_type(AgentResult.from_json(document), AgentResult[str])
    assert_type(AgentResult.from_json(document.encode()), AgentResult[str])
    assert_type(AgentResult.from_json(document, int), AgentResult[int])
    assert_type(AgentResult.from_json(document, list[Report]), AgentResult[list[Report]])
    assert_type(RunState.from_json(result.state.to_json()), RunState)
    assert_type(load_messages(dump_messages(result.messages)), list[Message])


def handle(event: Event) -> str:
    """The union of events is closed: a `match` that forgets one is found by the type checker."""
    match event:
        case endstop.Started() | endstop.Resumed() | endstop.RoundStarted() | endstop.RetrievedEvent():
            return event.run_id
        case endstop.TextDelta() | endstop.Thinking():
            return event.text
        case endstop.ToolCallEvent():
            return event.call.name
        case endstop.ToolResultEvent():
            return event.result.content
        case endstop.UsageEvent():
            assert_type(event.remaining, dict[str, float | Decimal])
            return str(event.spent.tokens)
        case endstop.LimitWarning():
            return event.hit.limit
        case endstop.LoopDetected():
            return event.reason
        case endstop.AskUser() | endstop.InterruptEvent():
            return event.pause.question
        case endstop.Truncated():
            return event.ending.reason
        case endstop.ErrorEvent():
            return event.code
        case endstop.Cancelled() | endstop.Done():
            assert_type(event.result, AgentResult[object])
            return str(event.result)
        case _:
            assert_never(event)


def say(message: Message) -> str:
    """So is the union of messages, and that of parts."""
    match message:
        case UserMessage():
            return message.content if isinstance(message.content, str) else " ".join(map(show, message.content))
        case ModelTurn() | ToolReturn():
            return message.text if message.kind == "model" else message.content
        case _:
            assert_never(message)


def show(part: Part) -> str:
    """Each part tells its kind."""
    match part:
        case TextPart():
            return part.text
        case ImagePart() | FilePart():
            return part.media_type
        case _:
            assert_never(part)


def pay(budget: Budget) -> LimitHit | None:
    """A reservation is a hold or the limit in the way."""
    hold = budget.reserve({"model_calls": 1, "cost": Decimal("0.01")})
    assert_type(hold, Hold | LimitHit)
    if isinstance(hold, LimitHit):
        return hold
    hold.split({"cost": Decimal("0.01")}).release()
    hold.settle({"model_calls": 1})
    return budget.charge({"tool_calls": 1})


def fail(error: endstop.EndstopError) -> str:
    """Errors carry their data."""
    match error:
        case endstop.ConfigError():
            return error.field
        case LimitExceeded():
            assert_type(error.ending, Ending)
            return error.result.text
        case ModelError():
            assert_type(error.status, int | None)
            assert_type(error.retry_after_seconds, float | None)
            assert_type(error.state, RunState | None)
            return str(error.retryable)
        case endstop.ResumeError():
            return error.limit or ""
        case _:
            return error.code
