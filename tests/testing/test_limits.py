"""The conformance kit of limits: the kernel holds every check, every check can fail, and the example adapters work."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from endstop import ModelTurn, PlanLimits
from endstop.testing.limits import (
    ALL_CHECKS,
    FINAL_ANSWER,
    FINDING,
    PROBE_STOP,
    Check,
    CheckResult,
    CountingTool,
    KernelRunner,
    LimitRunner,
    MissingFeature,
    ModelOutage,
    RunawayModel,
    RunEnd,
    Scenario,
    Script,
    check_limits,
    render_summary,
    run_check,
)
from endstop.testing.limits.checks import asks

CHECKS = {check.name: check for check in ALL_CHECKS}

# The kernel


@pytest.mark.both_backends
@pytest.mark.parametrize("name", CHECKS)
async def test_the_kernel_holds(name: str) -> None:
    """Every unit and every one of the seven classes, on both event loops."""
    assert str(await run_check(CHECKS[name], KernelRunner())).startswith("holds")


@pytest.mark.parametrize("on_limit", ["stop", "raise"])
async def test_the_kernel_holds_however_it_ends(on_limit: Any) -> None:
    """Without a reserve for an answer, and as an error, which carries the partial answer and names the limit."""
    results = await check_limits(KernelRunner(on_limit=on_limit))
    assert [str(result) for result in results if result.verdict != "holds"] == []
    assert render_summary(results) == f"{len(CHECKS)} of {len(CHECKS)} hold, 0 fail, 0 missing"


# Every check can fail


def same(value: Any) -> Any:
    """The value as it is."""
    return value


class Faulty(KernelRunner):
    """The kernel with a fault: it is given another scenario than was asked for, or reports another end."""

    def __init__(
        self, *, change: Callable[[Scenario], Scenario] = same, spoil: Callable[[RunEnd], RunEnd] = same
    ) -> None:
        super().__init__()
        self._change = change
        self._spoil = spoil

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run another scenario."""
        return self._spoil(await super().run(self._change(scenario)))


def given(**limits: Any) -> Faulty:
    """Keeps other limits than it was given."""
    return Faulty(change=lambda scenario: replace(scenario, limits=replace(scenario.limits, **limits)))


def reporting(**end: Any) -> Faulty:
    """Reports its end wrongly."""
    return Faulty(spoil=lambda ended: replace(ended, **end))


def with_tools(**attributes: Any) -> Faulty:
    """Handles its tools otherwise than they ask for."""

    def change(scenario: Scenario) -> Scenario:
        for tool in scenario.tools:
            for name, value in attributes.items():
                setattr(tool, name, value)
        return replace(scenario, limits=replace(scenario.limits, max_model_rounds=2))

    return Faulty(change=change)


class Delegate(CountingTool):
    """A sub-agent of which the run that calls it knows nothing."""

    def __init__(self, child: Scenario) -> None:
        super().__init__(name="delegate")
        self._child = replace(child, limits=PlanLimits(max_model_rounds=3))

    async def run(self, task: str) -> str:
        """Delegate a task."""
        return (await KernelRunner().run(self._child)).text


def detached(scenario: Scenario) -> Scenario:
    """Runs the child outside the limits."""
    assert scenario.child is not None
    return replace(scenario, child=None, tools=(Delegate(scenario.child),))


class Refusing(CountingTool):
    """A tool that refuses itself when its limit is used up."""

    def __init__(self, tool: CountingTool, allowed: int) -> None:
        super().__init__(name=tool.name)
        self._tool = tool
        self._allowed = allowed

    async def run(self, place: str) -> str:
        """Look in a place."""
        return await self._tool.run(place) if self._tool.started < self._allowed else "refused"


def refusing(scenario: Scenario) -> Scenario:
    """Refuses tools, and lets the model go on."""
    allowed = scenario.limits.max_tool_calls or 0
    tools = tuple(Refusing(tool, allowed) for tool in scenario.tools)
    return replace(scenario, tools=tools, limits=PlanLimits(max_model_rounds=8))


class Unresponsive:
    """A runner that runs nothing."""

    name = "unresponsive"

    async def run(self, scenario: Scenario) -> RunEnd:
        """End at once."""
        return RunEnd(status="cut")

    async def approve(self, end: RunEnd) -> RunEnd:
        """End at once."""
        return RunEnd(status="cut")


class Forgetful(KernelRunner):
    """A runner whose count starts again after a pause."""

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run it, and keep the scenario instead of the state."""
        return replace(await super().run(scenario), handle=scenario)

    async def approve(self, end: RunEnd) -> RunEnd:
        """Start again."""
        assert isinstance(end.handle, Scenario)
        return await self.run(end.handle)


class Stuck(KernelRunner):
    """A runner whose pauses never end."""

    async def approve(self, end: RunEnd) -> RunEnd:
        """Do nothing."""
        return end


NOT_ENDED = "the run had not ended after 100 requests to one model"
HANGING = "the run had not ended after 0.2 seconds"

FAULTS: list[tuple[str, LimitRunner, str]] = [
    ("model_rounds", given(max_model_rounds=6), "6 requests, 4 allowed"),
    ("model_rounds", given(max_model_rounds=None), NOT_ENDED),
    ("model_rounds", Unresponsive(), "the model was never asked"),
    ("model_calls", given(max_model_calls=5), "5 requests, 3 allowed"),
    ("tool_calls", given(max_tool_calls=9), "9 executions, 5 allowed"),
    ("tool_calls", reporting(unanswered=59), "59 tool calls in the history have no return"),
    ("tool_limits", given(tool_limits={"look": 4}), "4 executions, 2 allowed"),
    ("tool_limits", given(tool_limits={}, max_tool_calls=2), "the other tool was refused as well"),
    ("tool_limits", reporting(unanswered=1), "1 tool calls in the history have no return"),
    ("tokens", given(max_tokens=4_000), " tokens, 2200 allowed"),
    ("output_tokens", given(max_output_tokens=2_000), " output tokens, 1100 allowed"),
    ("cost", given(max_cost=0.004), " tokens at a dollar a million, 2200 allowed"),
    ("seconds", given(max_seconds=None), HANGING),
    ("seconds", with_tools(duration_seconds=0), "8 executions that finished, 0 allowed"),
    ("seconds", reporting(unanswered=8), "8 tool calls in the history have no return"),
    ("deadline", given(deadline=None), HANGING),
    ("deadline", reporting(status="paused"), "it waits for a person"),
    ("depth", given(max_depth=2), "1 runs two levels down, 0 allowed"),
    ("depth", given(max_depth=0), "the one level that is allowed was refused as well"),
    ("depth", reporting(unanswered=1), "1 tool calls in the history have no return"),
    ("zero", given(max_tool_calls=1), "1 executions, 0 allowed"),
    ("zero", given(max_tool_calls=None), NOT_ENDED),
    ("zero", Unresponsive(), "the model was never asked"),
    ("a_pause", Forgetful(), "13 requests after 12 approvals, 3 allowed"),
    ("a_pause", with_tools(needs_approval=False), "it never paused: status=cut"),
    ("a_pause", Stuck(), "it waits for a person"),
    ("b_children", Faulty(change=detached), " requests of parent and child, 6 allowed"),
    ("b_children", given(max_depth=0), "the child never ran"),
    ("c_race", Faulty(change=detached), " requests of 9 runs, 7 allowed"),
    ("c_race", given(max_depth=0), "no child ran"),
    ("c_race", reporting(unanswered=8), "8 tool calls in the history have no return"),
    ("d_refusals", Faulty(change=refusing), "8 requests, 5 allowed"),
    ("d_refusals", given(max_tool_calls=4), "4 executions, 2 allowed"),
    ("e_marked", reporting(status="completed"), "a program takes it for a normal end: status=completed text='As far"),
    ("e_marked", reporting(limit=None), "no limit is named for a program to read: status=cut"),
    ("f_usable", reporting(text="", error="e" * 90), f"no answer: status=cut text='' error='{'e' * 77}...'"),
    ("g_last_unit", reporting(status="raised"), "the answer is lost or marked: status=raised text='Under the mat.'"),
    ("g_last_unit", reporting(text=""), "the answer is lost or marked: status=completed text=''"),
]
"""Check -> a runner with a fault -> what the check says of it."""


@pytest.mark.parametrize(("name", "runner", "complaint"), FAULTS)
async def test_a_check_sees_a_fault(name: str, runner: LimitRunner, complaint: str) -> None:
    """It fails and says what it saw."""
    result = await run_check(CHECKS[name], runner, patience_seconds=0.2 if complaint == HANGING else 30)
    assert result.verdict == "fails"
    assert complaint in result.detail


def test_every_check_is_shown_a_fault() -> None:
    """A check that nobody has seen fail proves nothing."""
    assert {name for name, _, _ in FAULTS} == set(CHECKS)


# Running a check


class Endless(Unresponsive):
    """A loop that asks for ever, and at last makes of `RunawayModel` what `outcome` does."""

    def __init__(self, outcome: Callable[[BaseException], RunEnd]) -> None:
        self._outcome = outcome

    async def run(self, scenario: Scenario) -> RunEnd:
        """Ask for ever."""
        try:
            while True:
                await scenario.script.answer(tools_offered=True)
        except RunawayModel as stop:
            return self._outcome(stop)


def raising(error: Callable[[BaseException], BaseException]) -> Callable[[BaseException], RunEnd]:
    """Raises what `error` makes of what was raised."""

    def outcome(stop: BaseException) -> RunEnd:
        raise error(stop)

    return outcome


@pytest.mark.parametrize(
    "outcome",
    [
        raising(lambda stop: stop),
        raising(lambda stop: BaseExceptionGroup("a task group", [stop])),
        raising(lambda stop: AttributeError("a result has no text")),
        lambda stop: RunEnd(status="cut", limit="all", text=FINDING),
    ],
    ids=["passed on", "in a group", "replaced", "hidden"],
)
async def test_a_run_without_end_fails_whatever_its_loop_makes_of_the_stop(
    outcome: Callable[[BaseException], RunEnd],
) -> None:
    """Some catch everything, some choke on what is no `Exception`."""
    result = await run_check(CHECKS["model_rounds"], Endless(outcome))
    assert (result.verdict, result.detail) == ("fails", NOT_ENDED)


class Raising(Unresponsive):
    """A runner that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def run(self, scenario: Scenario) -> RunEnd:
        """Raise."""
        raise self._error


async def test_what_a_loop_does_not_have_is_missing() -> None:
    """That is neither good nor bad, and says what is not there."""
    result = await run_check(CHECKS["cost"], Raising(MissingFeature("it knows no prices")))
    rule = "money is bounded but for the newest request"
    assert result == CheckResult(check="cost", rule=rule, verdict="missing", detail="it knows no prices")
    assert str(result) == f"missing  cost           {rule}: it knows no prices"
    assert render_summary([result]) == "0 of 1 hold, 0 fail, 1 missing"


async def test_a_fault_of_a_runner_is_raised() -> None:
    """It says nothing about the loop; the error tells where it came from."""
    with pytest.raises(LookupError) as caught:
        await run_check(CHECKS["cost"], Raising(LookupError("no model")))
    assert caught.value.__notes__ == ["raised by unresponsive in the check cost"]


class Hanging(Endless):
    """A loop that has asked too often, and then hangs."""

    async def approve(self, end: RunEnd) -> RunEnd:
        """Hang."""
        await anyio.sleep_forever()
        raise AssertionError


async def test_a_check_can_be_cancelled() -> None:
    """A run without end is no reason to hold up whoever runs the checks."""

    async def judge(runner: LimitRunner) -> str | None:
        await runner.approve(await runner.run(Scenario(script=Script([asks("look")]))))
        return None

    check = Check(name="hanging", rule="it hangs", judge=judge)
    with anyio.move_on_after(0.1) as scope:
        await run_check(check, Hanging(lambda stop: RunEnd(status="paused")))
    assert scope.cancelled_caught


# The parts of a scenario


async def test_a_script_answers_its_turns_and_then_the_last_one_for_ever() -> None:
    """Every call has an id of its own; without tools it answers in words; some requests fail first; all are counted."""
    script = Script([asks("look", "look"), ModelTurn(text="Found.")], outages=1)
    with pytest.raises(ModelOutage):
        await script.answer(tools_offered=True)
    turns = [await script.answer(tools_offered=offered) for offered in (True, True, False, True)]
    assert [turn.text for turn in turns] == ["", "Found.", FINAL_ANSWER, "Found."]
    assert [call.call_id for call in turns[0].tool_calls] == ["2-0-look", "2-1-look"]
    assert all(turn.usage is not None for turn in turns)
    assert (script.requests, script.offered) == (5, [True, True, True, False, True])


async def test_a_script_stops_whoever_asks_too_often() -> None:
    """With an error that no ordinary handler catches."""
    script = Script([asks("look")])
    for _ in range(PROBE_STOP):
        await script.answer(tools_offered=True)
    assert not script.is_overrun
    with pytest.raises(RunawayModel) as caught:
        await script.answer(tools_offered=True)
    assert not isinstance(caught.value, Exception)
    assert script.is_overrun


# The adapters among the examples

RUNNERS = Path(__file__).resolve().parents[2] / "examples" / "runners"

PEERS = {
    "langchain_agent.py:runner": ("langchain", "1.1"),
    "langchain_agent.py:best": ("langchain", "1.1"),
    "pydantic_ai_agent.py:runner": ("pydantic_ai", "2.60"),
}
"""Runner -> the package that it needs, and the oldest version that it is written for."""


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> Any:
    """A runner of the examples, where what it needs is installed."""
    package, minversion = PEERS[request.param]
    pytest.importorskip(package, minversion=minversion)
    file, _, name = request.param.partition(":")
    return runpy.run_path(str(RUNNERS / file))[name]


def test_an_adapter_is_short() -> None:
    """It is read in two minutes."""
    assert [
        path.name for path in RUNNERS.glob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > 140
    ] == []


async def test_an_adapter_runs_tools(peer: LimitRunner) -> None:
    """And hands over the answer. Which limits its framework keeps is not for these tests to say."""
    script, look = (
        Script([asks("look", "look"), ModelTurn(text="Under the mat.")], outages=1),
        CountingTool(name="look"),
    )
    end = await peer.run(Scenario(script=script, tools=(look,)))
    assert (end.status, end.text, end.unanswered) == ("completed", "Under the mat.", 0)
    assert (script.requests, look.finished) == (3, 2)
    assert any(character.isdigit() for character in peer.name)


async def test_an_adapter_delegates(peer: LimitRunner) -> None:
    """The child has tools of its own, and its answer is the tool's return."""
    look = CountingTool(name="look")
    child = Scenario(script=Script([asks("look"), ModelTurn(text="Under the mat.")]), tools=(look,))
    script = Script([asks("delegate"), ModelTurn(text="It has been found.")])
    end = await peer.run(Scenario(script=script, child=child))
    assert (end.status, end.text) == ("completed", "It has been found.")
    assert (script.requests, child.script.requests, look.finished) == (2, 2, 1)


async def test_an_adapter_pauses(peer: LimitRunner) -> None:
    """A call that needs an approval is run after it."""
    pay = CountingTool(name="pay", needs_approval=True)
    paused = await peer.run(Scenario(script=Script([asks("pay", "pay"), ModelTurn(text="Paid.")]), tools=(pay,)))
    assert (paused.status, pay.started) == ("paused", 0)
    end = await peer.approve(paused)
    assert (end.status, end.text, pay.finished) == ("completed", "Paid.", 2)


async def test_an_adapter_is_judged(peer: LimitRunner) -> None:
    """Each check comes to a verdict, whatever the framework raises; the slow ones are not waited for."""
    results = await check_limits(peer, patience_seconds=2)
    assert [result.check for result in results] == list(CHECKS)
