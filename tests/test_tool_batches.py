"""The calls of one round: those that fit run at once, every one is answered, and no fault of a tool ends the run."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from endstop._budget import Budget
from endstop._effects import MemoryEffects
from endstop._errors import ToolFatal
from endstop._limits import LimitHit, PlanLimits
from endstop._messages import ToolCall, ToolReturn
from endstop._tools import Batch, Tool, ToolContext, Workshop, run_calls, tool, toolbox
from endstop.models.scripted import call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from endstop._effects import Step


class KeptKeys(MemoryEffects):
    """Effects in memory that note under which keys things are done."""

    __slots__ = ("keys", "together")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.together: list[list[str]] = []

    async def step(self, key: str, do: Callable[[], Awaitable[Any]]) -> Any:
        """Done under the key."""
        self.keys.append(key)
        return await super().step(key, do)

    async def parallel(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Done at once."""
        self.together.append([key for key, _ in steps])
        return await super().parallel(steps)


@dataclass
class Bench:
    """Tools, a budget, and what was told while they ran."""

    tools: list[Any]
    limits: PlanLimits = field(default_factory=PlanLimits)
    effects: KeptKeys = field(default_factory=KeptKeys)
    asked: list[str] = field(default_factory=list)
    told: list[ToolReturn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = Budget(self.limits)

    async def run(self, *calls: ToolCall, cut: bool = False) -> Batch:
        """Answer the calls."""
        batch = Batch(calls=calls, cut=cut)
        shop = Workshop(
            tools=toolbox(self.tools),
            budget=self.budget,
            effects=self.effects,
            context=lambda asked, *_: ToolContext(
                deps="deps",
                run_id="r",
                path=("a",),
                round=3,
                call_id=asked.call_id,
                tool=asked.name,
                budget=self.budget,
            ),
            key=lambda asked: f"3/tool/{asked.call_id}",
            on_call=lambda asked: self.asked.append(asked.call_id),
            on_return=lambda _, answer: self.told.append(answer),
        )
        await run_calls(batch, shop)
        return batch

    async def returned(self, function: Any, **arguments: Any) -> ToolReturn:
        """What the model is told of one call."""
        self.tools = [function]
        name = function.name if isinstance(function, Tool) else function.__name__
        batch = await self.run(call(name, arguments, call_id="1"))
        return batch.returns["1"]

    @property
    def executions(self) -> int:
        """How many were paid."""
        return self.budget.spent(0.0).tool_calls


def numbered(name: str, count: int) -> list[ToolCall]:
    """So many calls of a tool, each with its number."""
    return [call(name, {"n": n}, call_id=str(n)) for n in range(count)]


async def echo(n: int) -> int:
    """Say the number."""
    await anyio.lowlevel.checkpoint()
    return n


# -- the batch rule --------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_the_calls_of_a_batch_run_at_once() -> None:
    """Each waits for all the others, so that they could not run one after another."""
    arrived: list[int] = []
    everybody = anyio.Event()

    async def meet(n: int) -> int:
        arrived.append(n)
        if len(arrived) == 64:
            everybody.set()
        await everybody.wait()
        return n

    bench = Bench([meet])
    with anyio.fail_after(30):
        batch = await bench.run(*numbered("meet", 64))
    assert {key: answer.content for key, answer in batch.returns.items()} == {str(n): str(n) for n in range(64)}
    assert bench.executions == 64


@pytest.mark.both_backends
async def test_sync_tools_run_at_once_as_well() -> None:
    """None waits for a thread while its timeout runs, as many as there are."""
    everybody = threading.Barrier(64)

    def meet(n: int) -> int:
        everybody.wait(30)
        return n

    batch = await Bench([tool(timeout_seconds=60)(meet)]).run(*numbered("meet", 64))
    assert {answer.status for answer in batch.returns.values()} == {"ok"}


@pytest.mark.parametrize("limits", [PlanLimits(max_tool_calls=5), PlanLimits(tool_limits={"echo": 5})])
async def test_of_calls_that_do_not_all_fit_the_first_run(limits: PlanLimits) -> None:
    """In the order asked, never one more; each other is told that it was not run, and why."""
    bench = Bench([echo], limits)
    batch = await bench.run(*numbered("echo", 64))
    statuses = [batch.returns[str(n)].status for n in range(64)]
    assert statuses == ["ok"] * 5 + ["not_run"] * 59
    name = "max_tool_calls" if limits.max_tool_calls else "tool_limits['echo']"
    assert batch.returns["63"].content == f"Not run: the limit {name} is used up (5 of 5)."
    assert batch.hit == LimitHit(limit=name, used=5, allowed=5)
    assert bench.executions == len(batch.started) == 5


async def test_the_limit_of_one_tool_leaves_the_others() -> None:
    """The calls after it that fit are run."""

    async def other(n: int) -> int:
        return n

    bench = Bench([echo, other], PlanLimits(tool_limits={"echo": 1}))
    asked = [*numbered("echo", 2), call("other", {"n": 7}, call_id="7")]
    batch = await bench.run(*asked)
    assert {key: answer.status for key, answer in batch.returns.items()} == {"0": "ok", "1": "not_run", "7": "ok"}
    assert batch.hit is not None
    assert bench.budget.spent(0.0).tools == {"echo": 1, "other": 1}


async def test_the_first_limit_that_is_in_the_way_is_kept() -> None:
    """It is the one that the ending names."""
    bench = Bench([echo, tool(name="other")(echo_again)], PlanLimits(tool_limits={"echo": 0, "other": 0}))
    batch = await bench.run(call("echo", {"n": 1}, call_id="1"), call("other", {"n": 2}, call_id="2"))
    assert batch.hit == LimitHit(limit="tool_limits['echo']", used=0, allowed=0)


async def test_runs_that_share_a_budget_start_no_more_between_them() -> None:
    """8 batches of 8 calls on one limit of 9 start 9."""
    shared = Budget(PlanLimits(max_tool_calls=9))
    benches = [Bench([echo]) for _ in range(8)]
    batches: list[Batch] = []

    async def run(bench: Bench) -> None:
        bench.budget = Budget(PlanLimits(), parent=shared)
        batches.append(await bench.run(*numbered("echo", 8)))

    async with anyio.create_task_group() as group:
        for bench in benches:
            group.start_soon(run, bench)
    ran = [answer for batch in batches for answer in batch.returns.values() if answer.status == "ok"]
    assert len(ran) == shared.spent(0.0).tool_calls == 9
    assert sum(len(batch.returns) for batch in batches) == 64


async def test_every_call_is_told_when_asked_and_when_answered() -> None:
    """Calls in the order asked before anything runs; returns as they come, the same as are kept."""
    bench = Bench([echo], PlanLimits(max_tool_calls=2))
    batch = await bench.run(*numbered("echo", 3))
    assert bench.asked == ["0", "1", "2"]
    assert {answer.call_id: answer for answer in bench.told} == batch.returns
    assert len(bench.told) == 3


async def test_nothing_asked_is_nothing_done() -> None:
    """An empty batch starts no task."""
    bench = Bench([echo])
    assert (await bench.run()).returns == {}
    assert bench.effects.keys == bench.effects.together == []


async def test_every_execution_has_a_key_of_its_own() -> None:
    """Round and call id, the same whenever the run is repeated; a lone call needs no group."""
    bench = Bench([echo])
    await bench.run(*numbered("echo", 2), call("nothing", call_id="9"))
    assert sorted(bench.effects.keys) == ["3/tool/0", "3/tool/1"]
    assert bench.effects.together == [["3/tool/0", "3/tool/1"]]
    await bench.run(call("echo", {"n": 1}, call_id="5"))
    assert bench.effects.keys[-1] == "3/tool/5"
    assert len(bench.effects.together) == 1


async def test_a_tool_knows_the_run_that_it_is_called_in() -> None:
    """And the call."""
    seen: list[ToolContext[Any]] = []

    def look(context: ToolContext) -> str:
        seen.append(context)
        return "seen"

    bench = Bench([])
    await bench.returned(look)
    assert (seen[0].deps, seen[0].run_id, seen[0].path, seen[0].round) == ("deps", "r", ("a",), 3)
    assert (seen[0].call_id, seen[0].tool, seen[0].budget) == ("1", "look", bench.budget)


# -- calls that are not run ------------------------------------------------------------------------


async def test_a_tool_that_does_not_exist_is_answered_with_those_that_do() -> None:
    """It costs nothing, and the model can choose again."""
    bench = Bench([echo, tool(name="other")(echo_again)])
    batch = await bench.run(call("ecco", call_id="1"))
    assert batch.returns["1"] == ToolReturn(
        call_id="1", name="ecco", content="There is no tool 'ecco'; the tools are: echo, other.", status="error"
    )
    assert (bench.executions, batch.started, batch.hit) == (0, [], None)
    nothing = await Bench([]).run(call("x", call_id="1"))
    assert nothing.returns["1"].content == "There is no tool 'x'; the tools are: none."


def echo_again(n: int) -> int:
    """Say it again."""
    return n


async def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong() -> None:
    """They cost nothing."""
    bench = Bench([])
    answer = await bench.returned(echo, n="many", m=1)
    assert answer.status == "error"
    assert answer.content == (
        "The arguments do not fit: n: Input should be a valid integer, unable to parse string as an integer; "
        "m: Unexpected keyword argument"
    )
    assert bench.executions == 0


async def test_a_long_list_of_wrong_arguments_is_cut() -> None:
    """What is wrong with a thousand values is no longer than a result may be."""

    def total(numbers: list[int]) -> int:
        return sum(numbers)

    bench = Bench([])
    answer = await bench.returned(tool(max_result_chars=200)(total), numbers=["x"] * 1_000)
    assert answer.status == "error"
    assert "[cut: the first 200 of " in answer.content
    assert len(answer.content) < 300


@pytest.mark.parametrize(
    ("cut", "why"),
    [(False, "are not one JSON object"), (True, "were cut off at the output limit; send a shorter call")],
)
async def test_arguments_that_are_no_json_are_shown_to_the_model(cut: bool, why: str) -> None:
    """It is told what it wrote, and whether its turn was cut; a long text is shown in part."""
    bench = Bench([echo])
    broken = ToolCall(call_id="1", name="echo", arguments={}, invalid_arguments='{"n": ' + "1" * 1_000)
    answer = (await bench.run(broken, cut=cut)).returns["1"]
    assert answer.status == "error"
    assert answer.content.startswith(f'Not run: the arguments {why}. They were: {{"n": 111')
    assert answer.content.endswith("[cut: the first 500 of 1006 characters are shown]")
    assert bench.executions == 0


async def test_a_tool_may_refuse_a_call_before_it_is_paid() -> None:
    """What it says is told to the model, and nothing is run."""
    refusing = replace(tool(echo_again), refusal=lambda context: f"Not run: {context.tool} is closed.")
    bench = Bench([])
    answer = await bench.returned(refusing, n=1)
    assert (answer.status, answer.content, bench.executions) == ("not_run", "Not run: echo_again is closed.", 0)
    assert (await bench.returned(replace(refusing, refusal=lambda _: None), n=1)).content == "1"


# -- results and faults ----------------------------------------------------------------------------


async def test_a_result_is_cut_to_what_its_tool_allows() -> None:
    """With the full length."""

    def read() -> str:
        return "x" * 1_000

    answer = await Bench([]).returned(tool(max_result_chars=10)(read))
    assert answer.content == "xxxxxxxxxx\n[cut: the first 10 of 1000 characters are shown]"
    assert answer.status == "ok"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such page"), "ValueError: no such page"),
        (KeyError("a"), "KeyError: 'a'"),
        (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
        (TimeoutError("the server is slow"), "TimeoutError: the server is slow"),
        (TimeoutError(), "TimeoutError: "),
        (RuntimeError("a\udcff"), "RuntimeError: a?"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_exception_is_told_to_the_model(error: Exception, text: str, is_async: bool) -> None:
    """Whatever a tool raises, in a thread or not, is its return; it was paid."""

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    bench = Bench([])
    answer = await bench.returned(fail_later if is_async else fail)
    assert (answer.status, answer.content) == ("error", text)
    assert bench.executions == 1


async def test_a_long_exception_is_cut() -> None:
    """As a result is."""

    def fail() -> None:
        raise ValueError("x" * 1_000)

    answer = await Bench([]).returned(tool(max_result_chars=100)(fail))
    assert "[cut: the first 100 of 1012 characters are shown]" in answer.content


async def test_siblings_of_a_call_that_fails_finish() -> None:
    """Nothing that was paid for is thrown away."""
    failed = anyio.Event()

    async def fail(n: int) -> None:
        failed.set()
        raise ValueError("broken")

    async def wait(n: int) -> str:
        await failed.wait()
        await anyio.lowlevel.checkpoint()
        return "finished"

    with anyio.fail_after(10):
        batch = await Bench([fail, wait]).run(call("wait", {"n": 1}, call_id="1"), call("fail", {"n": 2}, call_id="2"))
    assert [batch.returns[key].status for key in "12"] == ["ok", "error"]


async def test_the_first_fatal_error_is_kept_and_siblings_finish() -> None:
    """The run ends when the batch is answered, not before."""
    fatal = anyio.Event()

    async def stop(n: int) -> None:
        fatal.set()
        raise ToolFatal(f"stop {n}\udcff")

    async def wait(n: int) -> str:
        await fatal.wait()
        return "finished"

    bench = Bench([tool(retries=3)(stop), wait])
    with anyio.fail_after(10):
        batch = await bench.run(*numbered("stop", 2), call("wait", {"n": 5}, call_id="5"))
    assert str(batch.fatal) == "stop 0\udcff"
    assert [batch.returns[key].content for key in "015"] == ["ToolFatal: stop 0?", "ToolFatal: stop 1?", "finished"]
    assert bench.executions == 3


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    """It is told how long it may take; a fast one is not bothered."""

    async def sleep(n: int) -> str:
        await anyio.sleep(n)
        return "awake"

    bench = Bench([tool(timeout_seconds=0.01)(sleep)])
    with anyio.fail_after(30):
        batch = await bench.run(call("sleep", {"n": 1_000}, call_id="1"), call("sleep", {"n": 0}, call_id="2"))
    assert batch.returns["1"].content == "TimeoutError: sleep took longer than 0.01 seconds"
    assert (batch.returns["1"].status, batch.returns["2"].content) == ("error", "awake")


async def test_a_sync_tool_that_takes_too_long_is_left_behind() -> None:
    """A thread cannot be stopped, and nobody waits for it."""
    end = anyio.Event()

    def wait() -> None:
        anyio.from_thread.run(end.wait)

    with anyio.fail_after(30):
        answer = await Bench([]).returned(tool(timeout_seconds=0.01)(wait))
    assert answer.content == "TimeoutError: wait took longer than 0.01 seconds"
    end.set()


# -- retries ---------------------------------------------------------------------------------------


def failing(times: int) -> Callable[[], str]:
    """A tool that fails so often before it succeeds."""
    left = [ValueError(f"failure {n + 1}") for n in range(times)]

    def flaky() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return flaky


@pytest.mark.parametrize(
    ("failures", "retries", "paid", "content"),
    [
        (0, 2, 1, "done"),
        (2, 2, 3, "done"),
        (3, 2, 3, "ValueError: failure 3"),
        (1, 0, 1, "ValueError: failure 1"),
    ],
)
async def test_each_retry_is_paid_as_an_execution(failures: int, retries: int, paid: int, content: str) -> None:
    """As many as the tool allows and no more; the last failure is the one that is told."""
    bench = Bench([])
    answer = await bench.returned(tool(retries=retries)(failing(failures)))
    assert (answer.content, bench.executions) == (content, paid)


@pytest.mark.parametrize("limits", [PlanLimits(max_tool_calls=2), PlanLimits(tool_limits={"flaky": 2})])
async def test_a_retry_that_cannot_be_paid_is_not_made(limits: PlanLimits) -> None:
    """Retries are inside the limits."""
    bench = Bench([], limits)
    answer = await bench.returned(tool(retries=9)(failing(9)))
    assert (answer.status, answer.content) == ("error", "ValueError: failure 2")
    assert bench.executions == 2


class Opaque:
    """Something that is no data."""


def circular() -> list[Any]:
    """A list that contains itself."""
    values: list[Any] = []
    values.append(values)
    return values


def deep() -> list[Any]:
    """A list of lists of lists."""
    return functools.reduce(lambda inner, _: [inner], range(2_000), [])


@pytest.mark.parametrize("make", [Opaque, circular, deep, lambda: {"\udcff": 1}])
async def test_a_result_that_cannot_be_shown_is_an_error_and_no_reason_to_run_again(make: Callable[[], object]) -> None:
    """What the tool did is done: its effects must not come twice."""
    runs: list[int] = []

    def act() -> object:
        runs.append(1)
        return make()

    bench = Bench([])
    answer = await bench.returned(tool(retries=3)(act))
    assert answer.status == "error"
    assert answer.content.startswith("It was run, but its result cannot be shown: ")
    assert (len(runs), bench.executions) == (1, 1)


# -- cancellation ----------------------------------------------------------------------------------


async def test_what_a_tool_waited_for_may_be_cancelled_without_the_run() -> None:
    """A connection that closes cancels whoever waits on it: that is the tool's fault, alone or among others."""

    async def wait(n: int) -> None:
        connection = asyncio.get_running_loop().create_future()
        connection.cancel()
        await connection

    bench = Bench([wait, echo])
    with anyio.fail_after(10):
        alone = await bench.run(call("wait", {"n": 0}, call_id="0"))
        batch = await bench.run(call("wait", {"n": 1}, call_id="1"), call("echo", {"n": 2}, call_id="2"))
    for answer in (alone.returns["0"], batch.returns["1"]):
        assert (answer.status, answer.content) == ("error", "RuntimeError: what it waited for was cancelled")
    assert batch.returns["2"].status == "ok"


@pytest.mark.both_backends
async def test_a_run_that_is_cancelled_takes_its_tools_with_it() -> None:
    """Its own cancellation is no fault of a tool: none is answered, and none is tried again."""
    started: list[int] = []
    stopped: list[int] = []

    async def wait(n: int) -> None:
        started.append(n)
        if len(started) == 2:
            scope.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(n)

    bench = Bench([tool(retries=3, timeout_seconds=1_000)(wait)])
    with anyio.CancelScope() as scope:
        await bench.run(*numbered("wait", 2))
    assert scope.cancelled_caught
    assert (sorted(started), sorted(stopped)) == ([0, 1], [0, 1])
    assert bench.told == []


class Stop(BaseException):
    """What is no `Exception` is not the model's to read: an interrupt from the keyboard, the end of the program."""


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_no_exception_leaves_at_once(is_async: bool) -> None:
    """It is not swallowed, not retried, and not told to the model."""

    def stop() -> None:
        raise Stop

    async def stop_later() -> None:
        raise Stop

    bench = Bench([])
    with pytest.raises(Stop):
        await bench.returned(tool(retries=3)(stop_later if is_async else stop))
    assert (bench.told, bench.executions) == ([], 1)


async def test_what_is_no_exception_leaves_a_batch_in_a_group() -> None:
    """Siblings are cancelled then: the program is ending."""

    async def stop(n: int) -> None:
        raise Stop

    async def wait(n: int) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(10), pytest.raises(BaseExceptionGroup) as caught:
        await Bench([stop, wait]).run(call("wait", {"n": 1}, call_id="1"), call("stop", {"n": 2}, call_id="2"))
    assert caught.group_contains(Stop)
