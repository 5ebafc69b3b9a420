"""Drives runs against each limit as hard as they go and prints by how much each limit was overshot.

Every limit is tried in three ways: one run whose model asks for 64 tool calls in each turn, 8 such runs at the same
time on one shared budget, and 8 threads on one shared budget, each with an event loop of its own. What was used is
counted here, by the model and the tools, and not by the budget that is being tested. A row fails where the overshoot
is above the bound that the design states: nothing, or for tokens and money the underestimate that the results admit.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, TypeAlias, get_args

import anyio

from endstop import (
    Agent,
    AgentResult,
    Budget,
    Delta,
    ModelError,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    Price,
    RetryPolicy,
    ToolReturn,
    Usage,
    tool,
)
from endstop.models.scripted import call, turn

PARALLEL_CALLS = 64
RUNS = 8
NAP_SECONDS = 60.0
"""How long a call in flight would take if no time limit ended it."""

PATIENCE_SECONDS = 10.0
"""A cancellation that takes longer than this failed; it allows for a busy machine."""

Number: TypeAlias = int | float | Decimal
Way: TypeAlias = Literal["64 parallel calls", "8 runs", "8 threads"]
WAYS: tuple[Way, ...] = get_args(Way)

PRICE = Price(input_per_million=Decimal(3), output_per_million=Decimal(15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A limit to drive runs against, and how to count from outside what they used of it.

    `bytes_per_token` is the tokenizer that the model reports by: above 3.5 the estimates are never too low.
    Every `fail_every`-th request fails in passing. With `naps` models and tools take longer than any limit.
    With `levels` there are so many agents, of which each can hand tasks to the next.
    """

    name: str
    unit: str
    limits: Callable[[], PlanLimits]
    allowed: Number
    used: Callable[[World], Number]
    bound: Callable[[World], Number] = lambda _: 0
    bytes_per_token: float = 5.0
    fail_every: int = 0
    naps: bool = False
    levels: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one case came to: units used, the overshoot, the largest overshoot that is admitted, and the results."""

    allowed: Number
    used: Number
    bound: Number
    results: tuple[AgentResult[str], ...]

    @property
    def overshoot(self) -> Number:
        """By how much the limit was passed; 0 where it was not."""
        return max(self.used - self.allowed, 0)

    @property
    def holds(self) -> bool:
        """Whether the limit held within its bound."""
        return self.overshoot <= self.bound


class World:
    """The model and the tools of one case. They never stop of their own accord, and count what is really done."""

    name = "greedy"

    def __init__(self, case: Case) -> None:
        self.case = case
        self.requests = 0
        self.rounds: set[int] = set()
        self.tools: Counter[str] = Counter()
        self.tokens = 0
        self.output_tokens = 0
        self.seconds = 0.0
        self.deepest = 0
        self.results: list[AgentResult[str]] = []
        self._lock = threading.Lock()
        self._calls = itertools.count()
        self._wake = threading.Event()
        # Kept so that no two requests have the same identity.
        self._seen: list[ModelRequest] = []

    @property
    def cost(self) -> Decimal:
        """US dollars of the tokens reported."""
        return PRICE.cost(Usage(input_tokens=self.tokens - self.output_tokens, output_tokens=self.output_tokens))

    @property
    def admitted_tokens(self) -> int:
        """The underestimate that the results state, all runs together."""
        return sum(result.spent.underestimated_tokens for result in self.results)

    async def respond(self, request: ModelRequest, on_delta: Callable[[Delta], object]) -> ModelTurn:
        """Asks for 64 calls, or answers where it is the final answer; writes as much as it may, and reports it all."""
        with self._lock:
            self.requests += 1
            self.rounds.add(id(request))
            self._seen.append(request)
            failing = self.case.fail_every and self.requests % self.case.fail_every == 0
        await anyio.sleep(NAP_SECONDS if self.case.naps and request.final else 0.001)
        if failing:
            raise ModelError("busy", retryable=True, status=503)
        usage = Usage(input_tokens=self._size(request), output_tokens=min(request.max_output_tokens or 700, 700))
        with self._lock:
            self.tokens += usage.input_tokens + usage.output_tokens
            self.output_tokens += usage.output_tokens
        if request.final:
            return turn("all that there is", usage=usage)
        names = itertools.cycle(("work", "toil"))
        calls = [call(next(names), {"n": next(self._calls)}) for _ in range(PARALLEL_CALLS)]
        if any(spec.name == "deeper" for spec in request.tools):
            calls[0] = call("deeper", {"task": f"task {next(self._calls)}"})
        return turn(calls=calls, usage=usage)

    def _size(self, request: ModelRequest) -> int:
        texts = [m.content if isinstance(m, ToolReturn) else str(m) for m in request.messages]
        size = sum(len(text) / self.case.bytes_per_token for text in texts if not text.startswith("ModelTurn"))
        return int(size) + sum(m.usage.output_tokens for m in request.messages if isinstance(m, ModelTurn) and m.usage)

    def agent(self, level: int = 0) -> Agent[str]:
        """An agent of this world without limits of its own; where there are levels, with the next one as a tool."""

        @tool(retries=1)
        async def work(n: int) -> str:
            """Work."""
            self._count("work", level)
            await anyio.sleep(NAP_SECONDS if self.case.naps else 0)
            if n % 7 == 0:
                raise ValueError(f"{n} did not work")
            return f"{n}: " + "what was found, " * 25

        @tool(read_only=True)
        def toil(n: int) -> str:
            """Work, in a thread."""
            self._count("toil", level)
            if self.case.naps:
                self._wake.wait(NAP_SECONDS)
            return f"{n}: " + "what was found, " * 25

        retry = RetryPolicy(max_attempts=30, initial_wait_seconds=0, jitter_seconds=0)
        if level < self.case.levels:
            below = self.agent(level + 1).as_tool(name="deeper", limits=_two_rounds())
            return Agent(self, tools=[work, toil, below], retry=retry, limits=_two_rounds())
        limits = PlanLimits(max_model_rounds=None, assume_price=PRICE)
        return Agent(self, tools=[work, toil], retry=retry, limits=limits)

    async def run(self, budget: Budget | None) -> None:
        """One run: under the limits of the case, or under a budget that has them. Depth is always a run's own."""
        own = self._limits() if budget is None or self.case.levels else None
        result = await self.agent().run("Go on.", limits=own, budget=budget)
        with self._lock:
            self.results.append(result)

    async def run_alone(self) -> None:
        """One run with limits of its own."""
        await self.run(None)

    async def run_together(self) -> None:
        """Several runs at once on one budget."""
        budget = Budget(self._limits())
        async with anyio.create_task_group() as group:
            for _ in range(RUNS):
                group.start_soon(self.run, budget)

    def run_in_threads(self) -> None:
        """Several threads at once on one budget."""
        budget = Budget(self._limits())
        threads = [threading.Thread(target=anyio.run, args=(self.run, budget)) for _ in range(RUNS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def go(self, way: Way) -> None:
        """Drives runs into the limit in one of the ways, and takes the time from outside."""
        started = time.monotonic()
        try:
            if way == "8 threads":
                self.run_in_threads()
            else:
                anyio.run(self.run_alone if way == "64 parallel calls" else self.run_together)
        finally:
            self._wake.set()
        self.seconds = time.monotonic() - started

    def _limits(self) -> PlanLimits:
        return self.case.limits()

    def _count(self, name: str, level: int) -> None:
        with self._lock:
            self.tools[name] += 1
            self.deepest = max(self.deepest, level)


def _limits(limits: PlanLimits) -> Callable[[], PlanLimits]:
    rounds = None if limits.max_model_rounds == PlanLimits().max_model_rounds else limits.max_model_rounds
    return lambda: replace(limits, max_model_rounds=rounds)


def _two_rounds() -> PlanLimits:
    return PlanLimits(max_model_rounds=2)


def _due_soon() -> PlanLimits:
    return PlanLimits(max_model_rounds=None, deadline=datetime.now(UTC) + timedelta(seconds=0.4), answer_seconds=0.1)


def _price_of_admitted(world: World) -> Decimal:
    return world.admitted_tokens * PRICE.output_per_million / 1_000_000


def _dollars(amount: str) -> Callable[[], PlanLimits]:
    return _limits(PlanLimits(max_cost=Decimal(amount), assume_price=PRICE))


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            name="max_model_rounds",
            unit="rounds",
            limits=_limits(PlanLimits(max_model_rounds=19)),
            allowed=19,
            used=lambda world: len(world.rounds),
            fail_every=3,
        ),
        Case(
            name="max_model_calls",
            unit="requests sent",
            limits=_limits(PlanLimits(max_model_calls=23)),
            allowed=23,
            used=lambda world: world.requests,
            fail_every=3,
        ),
        Case(
            name="max_tool_calls",
            unit="executions started",
            limits=_limits(PlanLimits(max_tool_calls=100)),
            allowed=100,
            used=lambda world: world.tools.total(),
        ),
        Case(
            name="tool_limits['work']",
            unit="executions started",
            limits=_limits(PlanLimits(max_model_rounds=30, tool_limits={"work": 50})),
            allowed=50,
            used=lambda world: world.tools["work"],
        ),
        Case(
            name="max_tokens",
            unit="tokens, none underestimated",
            limits=_limits(PlanLimits(max_tokens=150_000)),
            allowed=150_000,
            used=lambda world: world.tokens,
        ),
        Case(
            name="max_tokens (dense)",
            unit="tokens, twice the estimate",
            limits=_limits(PlanLimits(max_tokens=12_000)),
            allowed=12_000,
            used=lambda world: world.tokens,
            bound=lambda world: world.admitted_tokens,
            bytes_per_token=1.5,
        ),
        Case(
            name="max_output_tokens",
            unit="tokens written",
            limits=_limits(PlanLimits(max_output_tokens=20_000)),
            allowed=20_000,
            used=lambda world: world.output_tokens,
            bytes_per_token=1.5,
        ),
        Case(
            name="max_cost",
            unit="US dollars, none underestimated",
            limits=_dollars("0.9"),
            allowed=Decimal("0.9"),
            used=lambda world: world.cost,
        ),
        Case(
            name="max_cost (dense)",
            unit="US dollars, twice the estimate",
            limits=_dollars("0.05"),
            allowed=Decimal("0.05"),
            used=lambda world: world.cost,
            bound=_price_of_admitted,
            bytes_per_token=1.5,
        ),
        Case(
            name="max_seconds",
            unit="seconds of work",
            limits=_limits(PlanLimits(max_seconds=0.4)),
            allowed=0.4,
            used=lambda world: world.seconds,
            bound=lambda _: PATIENCE_SECONDS,
            naps=True,
        ),
        Case(
            name="deadline",
            unit="seconds until the time",
            limits=_due_soon,
            allowed=0.4,
            used=lambda world: world.seconds,
            bound=lambda _: PATIENCE_SECONDS,
            naps=True,
        ),
        Case(
            name="max_depth",
            unit="levels below the run",
            limits=_limits(PlanLimits(max_model_rounds=2, max_depth=3)),
            allowed=3,
            used=lambda world: world.deepest,
            levels=6,
        ),
    )
}
"""The limits by the name of their case. A dense case has a tokenizer that makes the estimates too low."""


def measure(name: str, way: Way) -> Measured:
    """Drive runs into the limit in one of the ways."""
    case = CASES[name]
    world = World(case)
    world.go(way)
    return Measured(allowed=case.allowed, used=case.used(world), bound=case.bound(world), results=tuple(world.results))


def shown(number: Number) -> str:
    """A number as the table shows it."""
    return f"{number:,}" if isinstance(number, int) else f"{math.ceil(number * 1_000) / 1_000:g}"


def main() -> int:
    """Prints the table; the status is 1 where a limit did not hold."""
    failed = False
    print("| limit | unit | check | allowed | largest overshoot (64 parallel calls / 8 runs / 8 threads) | admitted |")
    print("|---|---|---|---|---|---|")
    for name, case in CASES.items():
        rows = [measure(name, way) for way in WAYS]
        failed = failed or not all(row.holds for row in rows)
        check = f"`test_limits_of_runs.py::test_no_limit_is_passed[{name}]`"
        overshoots = " / ".join(shown(row.overshoot) for row in rows)
        admitted = "the time a cancellation takes" if case.naps else " / ".join(shown(row.bound) for row in rows)
        print(f"| `{name}` | {case.unit} | {check} | {shown(case.allowed)} | {overshoots} | {admitted} |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
