"""Random models, tools, limits, readers and resumptions: what must hold of every run, whatever happens in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

import anyio
import anyio.lowlevel
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from endstop import (
    Agent,
    AgentResult,
    Budget,
    Cancelled,
    Delta,
    Done,
    ErrorEvent,
    Event,
    ModelError,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    Price,
    ResumeError,
    RoundStarted,
    RunError,
    RunState,
    RunStream,
    ToolCall,
    ToolFatal,
    Truncated,
    Usage,
)
from endstop.models.base import OnDelta
from endstop.models.scripted import turn
from tests.runs import (
    AT_ONCE,
    PATIENCE_SECONDS,
    assert_nothing_held,
    assert_one_end,
    assert_valid_history,
)

PRICE = Price(input_per_million=Decimal(1_000), output_per_million=Decimal(5_000))


class Broken(Exception):
    """An adopter's own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the model does when it is asked once. Without `usage` the provider reports none."""

    kind: Literal["turn", "cut", "busy", "refused", "broken"]
    text: str = ""
    calls: tuple[tuple[str, int, str], ...] = ()
    usage: tuple[int, int] | None = None
    pieces: bool = False
    suspends: bool = False


@dataclass(slots=True, kw_only=True)
class World:
    """A model that plays its cards and the tools that it calls, with books of what was really done."""

    cards: Sequence[Card]
    requests: int = 0
    rounds: int = 0
    newest: ModelRequest | None = None
    tools: Counter[str] = field(default_factory=Counter)
    reported: list[Usage] = field(default_factory=list)
    unreported: int = 0
    name: str = "cards"

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Plays the next card, within the cap; after the last it answers."""
        card = self.cards[self.requests] if self.requests < len(self.cards) else Card(kind="turn", text="the end")
        self.requests += 1
        # Another attempt of a round sends the same request.
        self.rounds += request is not self.newest
        self.newest = request
        self.unreported += 1  # until it is known better
        assert_valid_history(request.messages)
        cap = request.max_output_tokens
        assert cap is None or cap > 0
        if card.suspends:
            await anyio.lowlevel.checkpoint()
        if card.pieces and card.text:
            await on_delta(Delta(text=card.text))
        if card.kind == "broken":
            raise Broken(card.text)
        if card.kind in ("busy", "refused"):
            self.unreported -= not (card.pieces and card.text)
            raise ModelError(card.kind, retryable=card.kind == "busy")
        calls = [ToolCall(call_id=call_id, name=tool, arguments={"n": n}) for tool, n, call_id in card.calls]
        if cap is not None:
            calls = calls[: cap // 24]
        usage = None
        if card.usage is not None:
            output = card.usage[1] if cap is None else min(card.usage[1], cap)
            usage = Usage(input_tokens=card.usage[0], output_tokens=output)
            self.reported.append(usage)
            self.unreported -= 1
        answer = turn(card.text, calls=calls, usage=usage)
        return replace(answer, finish_reason="length") if card.kind == "cut" else answer

    def agent(self) -> Agent[str]:
        """An agent with one tool of each kind."""

        async def good(n: int) -> str:
            """Work."""
            self.tools["good"] += 1
            return f"good {n}"

        async def slow(n: int) -> str:
            """Work and wait."""
            self.tools["slow"] += 1
            await anyio.lowlevel.checkpoint()
            return f"slow {n}"

        async def bad(n: int) -> str:
            """Fail."""
            self.tools["bad"] += 1
            raise OSError(n)

        async def fatal(n: int) -> str:
            """End the run."""
            self.tools["fatal"] += 1
            raise ToolFatal(f"{n}")

        return Agent(self, tools=[good, slow, bad, fatal], retry=AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One leg of a run: its limits, and what its reader does at which event."""

    limits: PlanLimits
    reader: Literal["reads", "cancels", "leaves"] = "reads"
    at: int = 0


# --- what is drawn --------------------------------------------------------------------------------

TOOLS = st.sampled_from(["good"] * 6 + ["slow"] * 3 + ["bad", "nowhere", "fatal"])
CALLS = st.lists(
    st.tuples(TOOLS, st.integers(0, 3), st.sampled_from(["", "", "a", "b", "call_1_0", "call_2_1"])), max_size=6
)
CARDS = st.builds(
    Card,
    kind=st.sampled_from(["turn"] * 12 + ["cut", "busy", "busy", "refused", "broken"]),
    text=st.sampled_from(["", "", "word", "ü" * 9, " "]),
    calls=CALLS.map(tuple),
    usage=st.none() | st.tuples(st.integers(0, 300), st.integers(0, 120)),
    pieces=st.booleans(),
    suspends=st.booleans(),
)


def maybe(most: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, most)


LIMITS = st.builds(
    PlanLimits,
    max_model_rounds=st.integers(0, 8),
    max_model_calls=maybe(10),
    max_tool_calls=maybe(12),
    tool_limits=st.dictionaries(st.sampled_from(["good", "slow"]), st.integers(0, 5), max_size=2),
    max_tokens=maybe(3_000),
    max_output_tokens=maybe(500),
    max_cost=st.none() | st.integers(0, 5).map(Decimal),
    assume_price=st.just(PRICE),
    on_limit=st.sampled_from(["answer", "answer", "stop", "raise"]),
    answer_tokens=st.integers(0, 200),
    warn_at=st.sampled_from([None, 0.5, 0.8]),
    warn_model=st.booleans(),
)
LEGS = st.builds(
    Leg, limits=LIMITS, reader=st.sampled_from(["reads"] * 4 + ["cancels", "leaves"]), at=st.integers(0, 25)
)


# --- what must hold -------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Course:
    """A run over all its legs, and what its events said."""

    world: World
    seq: int = 0
    priced: bool = True
    state: RunState | None = None

    async def go(self, leg: Leg, budget: Budget) -> AgentResult[str] | None:
        """One leg; its result, or `None` where it raised. What must hold of it is checked on the way."""
        agent = self.world.agent()
        self.priced = self.priced and leg.limits.max_cost is not None
        if self.state is None:
            stream = agent.stream("Go.", limits=leg.limits, budget=budget)
        else:
            stored = RunState.from_json(self.state.to_json())
            assert stored == self.state
            stream = agent.resume_stream(stored, limits=leg.limits, budget=budget)
        events: list[Event] = []
        error: Exception | None = None
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                await read(stream, leg, events)
        except (RunError, Broken) as raised:
            error = raised
        self.check_events(events, error, leg)
        result = None if error is not None else result_of(stream, leg)
        self.state = result.state if result else getattr(error, "state", None) or stream.state
        if result is not None:
            check_result(result)
            assert AgentResult.from_json(result.to_json()) == result
        self.check_state(broken=result is None and not isinstance(error, RunError))
        assert_nothing_held(budget)
        return result

    def check_events(self, events: list[Event], error: Exception | None, leg: Leg) -> None:
        """One end of the right kind, numbers that go on, at most one final answer."""
        starts = [e for e in events if isinstance(e, RoundStarted) and e.attempt == 1]
        assert sum(start.final for start in starts) <= 1
        if leg.reader != "leaves":
            last = assert_one_end(events)
            assert isinstance(last, ErrorEvent if error else Done | Cancelled)
        if events:
            assert events[0].seq == self.seq + 1
            self.seq = events[-1].seq

    def check_state(self, *, broken: bool) -> None:
        """Everything that was done is charged, and nothing else; no limit is passed beyond its bound."""
        assert self.state is not None
        assert_valid_history(self.state.messages)
        if broken:
            return
        spent, world = self.state.spent, self.world
        assert (spent.model_calls, spent.model_rounds) == (world.requests, world.rounds)
        assert dict(spent.tools) == dict(world.tools)
        assert spent.tool_calls == world.tools.total()
        assert spent.unmeasured == world.unreported
        if not world.unreported:
            assert spent.input_tokens == sum(usage.input_tokens for usage in world.reported)
            assert spent.output_tokens == sum(usage.output_tokens for usage in world.reported)
            assert not self.priced or spent.cost == sum((PRICE.cost(usage) for usage in world.reported), Decimal(0))


def check_limits(result_or_state: RunState, limits: PlanLimits) -> None:
    """What is spent is at most what is allowed, for tokens and money beside the underestimate that is stated."""
    spent, admitted = result_or_state.spent, result_or_state.spent.underestimated_tokens
    for name in ("model_rounds", "model_calls", "tool_calls"):
        bound = getattr(limits, f"max_{name}")
        assert bound is None or getattr(spent, name) <= bound, name
    assert all(spent.tools.get(name, 0) <= bound for name, bound in limits.tool_limits.items())
    assert limits.max_tokens is None or spent.tokens <= limits.max_tokens + admitted
    assert limits.max_output_tokens is None or spent.output_tokens <= limits.max_output_tokens + admitted
    if limits.max_cost is not None:
        assert spent.cost <= Decimal(limits.max_cost) + admitted * PRICE.output_per_million / 1_000_000


def check_result(result: AgentResult[str]) -> None:
    """Truncated where and only where a limit ended it, with an ending that says which."""
    assert (result.ending is None) == (result.stop_reason == "completed")
    if result.ending is None:
        assert str(result) == result.text
        return
    assert str(result).startswith("[")
    by_limit = result.ending.limit is not None and result.stop_reason != "cancelled"
    assert result.truncated == by_limit
    if by_limit:
        assert (result.stop_reason == "tool_limit") == (result.ending.limit == "max_model_rounds")
    assert bool(result.text.strip()) == (result.ending.rung != "empty")


def result_of(stream: RunStream[str], leg: Leg) -> AgentResult[str] | None:
    """The result of a run; one that failed unseen after its reader had left has none."""
    try:
        return stream.result
    except RuntimeError:
        assert leg.reader == "leaves"
        return None


async def read(stream: RunStream[str], leg: Leg, events: list[Event]) -> None:
    """Reads the stream as the reader of this leg does."""
    async with stream:
        async for told in stream:
            events.append(told)
            if len(events) > leg.at and leg.reader == "leaves":
                break
            if len(events) > leg.at and leg.reader == "cancels":
                stream.cancel()


BACKENDS = st.sampled_from(["asyncio", "asyncio", "trio"])
SLOW_IS_FINE = [HealthCheck.too_slow]


@settings(max_examples=250, suppress_health_check=SLOW_IS_FINE)
@given(cards=st.lists(CARDS, max_size=14), leg=LEGS, backend=BACKENDS)
def test_every_run_is_bounded_charged_valid_and_ends_once(cards: list[Card], leg: Leg, backend: str) -> None:
    """One leg, whatever the model, the tools and the reader do."""
    course = Course(world=World(cards=cards))
    budget = Budget(replace(leg.limits, tool_limits={}))
    result = anyio.run(course.go, leg, budget, backend=backend)
    event(result.stop_reason if result else "raised")
    assert course.state is not None
    assert budget.spent(0).model_calls == course.world.requests
    assert budget.spent(0).tool_calls == course.world.tools.total()
    check_limits(replace(course.state, spent=budget.spent(0)), leg.limits)


@settings(max_examples=120, suppress_health_check=SLOW_IS_FINE)
@given(cards=st.lists(CARDS, min_size=4, max_size=25), legs=st.lists(LEGS, min_size=2, max_size=4), backend=BACKENDS)
def test_a_run_of_many_legs_is_one_run(cards: list[Card], legs: list[Leg], backend: str) -> None:
    """Each leg goes on from the stored state of the one before, under limits of its own: the counts are of them all."""
    course = Course(world=World(cards=cards))

    async def go() -> None:
        for leg in legs:
            try:
                result = await course.go(leg, Budget(PlanLimits(max_model_rounds=None)))
            except ResumeError:
                assert course.state is not None
                assert course.state.stop_reason == "completed" or course.state.hit is not None
                return
            assert course.state is not None
            if result is not None and result.stop_reason == "completed":
                event(f"completed after {legs.index(leg) + 1} legs")
            if course.state.spent.model_calls != course.world.requests:
                return  # an adopter's error left no state to go on from
            if leg.reader == "leaves":
                course.seq = course.state.seq

    anyio.run(go, backend=backend)


@settings(max_examples=80, suppress_health_check=SLOW_IS_FINE)
@given(hands=st.lists(st.lists(CARDS, max_size=8), min_size=2, max_size=6), limits=LIMITS, backend=BACKENDS)
def test_runs_that_share_a_budget_are_bounded_together(
    hands: list[list[Card]], limits: PlanLimits, backend: str
) -> None:
    """Whatever they do at the same time, together they stay within it, and what they spent adds up."""
    limits = replace(limits, tool_limits={})
    budget = Budget(limits)
    worlds = [World(cards=[replace(card, suspends=True) for card in cards]) for cards in hands]

    async def go(world: World) -> None:
        try:
            check_result(await world.agent().run("Go.", limits=replace(limits, max_model_rounds=20), budget=budget))
        except (RunError, Broken):
            event("raised")

    async def all_of_them() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as group:
                for world in worlds:
                    group.start_soon(go, world)

    anyio.run(all_of_them, backend=backend)
    spent = budget.spent(0)
    assert spent.model_calls == sum(world.requests for world in worlds)
    assert spent.tool_calls == sum(world.tools.total() for world in worlds)
    assert_nothing_held(budget)
    check_limits(RunState(run_id="", agent="", limits=limits, messages=[], spent=spent), limits)


def test_a_truncated_run_tells_so_in_its_stream() -> None:
    """The event is there if and only if the result is truncated; an example, so that the rule above is not empty."""

    async def go(limits: PlanLimits) -> tuple[list[Event], AgentResult[str]]:
        world = World(cards=[Card(kind="turn", calls=(("good", 1, ""),))] * 3)
        events: list[Event] = []
        stream = world.agent().stream("Go.", limits=limits)
        await read(stream, Leg(limits=limits), events)
        return events, stream.result

    for limits, truncated in ((PlanLimits(max_model_rounds=2), True), (PlanLimits(), False)):
        events, result = anyio.run(go, limits)
        assert any(isinstance(told, Truncated) for told in events) is result.truncated is truncated
