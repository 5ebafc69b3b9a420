"""The checks: one for each unit that can be limited, and one for each of the seven ways in which limits break.

A fault fails one check as far as that can be: whether the end is marked, and comes with an answer, is for two of the
seven to say; the units ask only that the limit is kept and that the run ends.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from endstop._limits import PlanLimits, Price
from endstop._messages import ModelTurn, ToolCall, Usage
from endstop.testing.limits.kit import (
    FINDING,
    PATIENCE_SECONDS,
    Check,
    CheckResult,
    CountingTool,
    LimitRunner,
    RunEnd,
    Scenario,
    Script,
    run_check,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_TURN_USAGE = Usage(input_tokens=100, output_tokens=100)
_TURN_TOKENS = _TURN_USAGE.input_tokens + _TURN_USAGE.output_tokens


async def check_limits(
    runner: LimitRunner, checks: Sequence[Check] | None = None, *, patience_seconds: float = PATIENCE_SECONDS
) -> list[CheckResult]:
    """Run the checks (by default all) on a runner, one after the other, as `run_check` does."""
    chosen = ALL_CHECKS if checks is None else checks
    return [await run_check(check, runner, patience_seconds=patience_seconds) for check in chosen]


# -- units -----------------------------------------------------------------------------------------


async def model_rounds(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look")]), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=PlanLimits(max_model_rounds=4)))
    return _over("requests", script.requests, 4) or _no_end(end, script)


async def model_calls_with_retries(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look")], outages=2), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_model_calls=3)))
    return _over("requests", script.requests, 3) or _no_end(end, script)


async def tool_calls_of_one_batch(runner: LimitRunner) -> str | None:
    script, look = Script([asks(*["look"] * 64)]), CountingTool(name="look", duration_seconds=0.01)
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_tool_calls=5)))
    return _over("executions", look.started, 5) or _unanswered(end) or _no_end(end, script)


async def calls_of_one_tool(runner: LimitRunner) -> str | None:
    script = Script([asks("look", "listen")])
    look, listen = CountingTool(name="look"), CountingTool(name="listen")
    limits = _limits(tool_limits={"look": 2}, max_model_rounds=6)
    end = await runner.run(Scenario(script=script, tools=(look, listen), limits=limits))
    idle = None if listen.started > 2 else "the other tool was refused as well"
    return _over("executions", look.started, 2) or _unanswered(end) or idle


async def tokens(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look", usage=_TURN_USAGE)]), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_tokens=2_000)))
    return _over("tokens", script.requests * _TURN_TOKENS, 2_000 + _TURN_TOKENS) or _no_end(end, script)


async def output_tokens(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look", usage=_TURN_USAGE)]), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_output_tokens=1_000)))
    spent = script.requests * _TURN_USAGE.output_tokens
    return _over("output tokens", spent, 1_000 + _TURN_USAGE.output_tokens) or _no_end(end, script)


async def cost(runner: LimitRunner) -> str | None:
    price = Price(input_per_million=Decimal(1), output_per_million=Decimal(1))
    script, look = Script([asks("look", usage=_TURN_USAGE)]), CountingTool(name="look")
    limits = _limits(max_cost=0.002, assume_price=price)
    end = await runner.run(Scenario(script=script, tools=(look,), limits=limits))
    spent = script.requests * _TURN_TOKENS
    return _over("tokens at a dollar a million", spent, 2_000 + _TURN_TOKENS) or _no_end(end, script)


async def working_seconds(runner: LimitRunner) -> str | None:
    script, look = Script([asks(*["look"] * 8)]), CountingTool(name="look", duration_seconds=60)
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_seconds=0.5)))
    return _over("executions that finished", look.finished, 0) or _unanswered(end) or _waits(end)


async def deadline(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look")], latency_seconds=60), CountingTool(name="look")
    due = datetime.now(UTC) + timedelta(seconds=0.5)
    return _waits(await runner.run(Scenario(script=script, tools=(look,), limits=_limits(deadline=due))))


async def depth(runner: LimitRunner) -> str | None:
    deepest = Scenario(script=Script([ModelTurn(text="deepest")]))
    middle = Scenario(script=Script([asks("delegate"), ModelTurn(text="middle")]), child=deepest)
    top = Scenario(script=Script([asks("delegate"), ModelTurn(text="top")]), child=middle, limits=_limits(max_depth=1))
    end = await runner.run(top)
    reached = None if middle.script.requests else "the one level that is allowed was refused as well"
    return _over("runs two levels down", deepest.script.requests, 0) or reached or _unanswered(end)


async def none_at_all(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look")]), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_tool_calls=0)))
    return _over("executions", look.started, 0) or _unanswered(end) or _not_asked(script)


# -- the seven classes -----------------------------------------------------------------------------


async def a_pause_keeps_the_count(runner: LimitRunner) -> str | None:
    script, pay = Script([asks("pay")]), CountingTool(name="pay", needs_approval=True)
    end = await runner.run(Scenario(script=script, tools=(pay,), limits=_limits(max_model_calls=3)))
    approvals = 0
    while end.status == "paused" and approvals < 12:
        approvals += 1
        end = await runner.approve(end)
    if not approvals:
        return f"it never paused: {_shown(end)}"
    return _over(f"requests after {approvals} approvals", script.requests, 3) or _no_end(end, script)


async def b_children_are_inside(runner: LimitRunner) -> str | None:
    child = Scenario(script=Script([asks("look")]), tools=(CountingTool(name="look"),))
    top = Scenario(script=Script([asks("delegate")]), child=child, limits=_limits(max_model_calls=6))
    end = await runner.run(top)
    requests = top.script.requests + child.script.requests
    reached = None if child.script.requests else "the child never ran"
    return _over("requests of parent and child", requests, 6) or reached or _no_end(end, top.script)


async def c_children_at_once_do_not_race(runner: LimitRunner) -> str | None:
    look = CountingTool(name="look", duration_seconds=0.01)
    child = Scenario(script=Script([asks("look")], latency_seconds=0.01), tools=(look,))
    limits = _limits(max_model_calls=7, max_tool_calls=20)
    top = Scenario(script=Script([asks(*["delegate"] * 8)]), child=child, limits=limits)
    end = await runner.run(top)
    requests = top.script.requests + child.script.requests
    reached = None if child.script.requests else "no child ran"
    return _over("requests of 9 runs", requests, 7) or _unanswered(end) or reached or _no_end(end, top.script)


async def d_refused_tools_end_the_run(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look")]), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_tool_calls=2)))
    return _over("executions", look.started, 2) or _over("requests", script.requests, 5) or _no_end(end, script)


async def e_the_end_is_marked(runner: LimitRunner) -> str | None:
    end = await _cut_run(runner)
    if end.status == "completed":
        return f"a program takes it for a normal end: {_shown(end)}"
    return None if end.limit else f"no limit is named for a program to read: {_shown(end)}"


async def f_there_is_a_usable_answer(runner: LimitRunner) -> str | None:
    end = await _cut_run(runner)
    return None if FINDING in end.text else f"the caller is given no answer: {_shown(end)}"


async def g_an_answer_on_the_last_unit_counts(runner: LimitRunner) -> str | None:
    script, look = Script([asks("look"), ModelTurn(text="Under the mat.")]), CountingTool(name="look")
    end = await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_tool_calls=1, max_model_calls=3)))
    if end.status != "completed" or end.text != "Under the mat.":
        return f"the answer is lost or marked: {_shown(end)}"
    return None


ALL_CHECKS: tuple[Check, ...] = (
    Check(name="model_rounds", rule="4 rounds are at most 4 requests, and end", judge=model_rounds),
    Check(name="model_calls", rule="retries are requests like any other", judge=model_calls_with_retries),
    Check(name="tool_calls", rule="of 64 calls at once at most 5 run, each is answered", judge=tool_calls_of_one_batch),
    Check(name="tool_limits", rule="a limit on one tool leaves the others", judge=calls_of_one_tool),
    Check(name="tokens", rule="tokens are bounded but for the newest request", judge=tokens),
    Check(name="output_tokens", rule="output tokens are bounded but for the newest request", judge=output_tokens),
    Check(name="cost", rule="money is bounded but for the newest request", judge=cost),
    Check(name="seconds", rule="tools in flight are cancelled and answered", judge=working_seconds),
    Check(name="deadline", rule="a request in flight is cancelled", judge=deadline),
    Check(name="depth", rule="no run starts below the allowed level", judge=depth),
    Check(name="zero", rule="0 means none at all", judge=none_at_all),
    Check(name="a_pause", rule="a pause and resume keeps the count", judge=a_pause_keeps_the_count),
    Check(name="b_children", rule="sub-agents are inside the limit", judge=b_children_are_inside),
    Check(name="c_race", rule="8 children at once cannot overrun it", judge=c_children_at_once_do_not_race),
    Check(name="d_refusals", rule="a run whose tools are refused ends", judge=d_refused_tools_end_the_run),
    Check(name="e_marked", rule="the end says that and which limit ended it", judge=e_the_end_is_marked),
    Check(name="f_usable", rule="the end comes with an answer from what was found", judge=f_there_is_a_usable_answer),
    Check(
        name="g_last_unit",
        rule="an answer on the last unit is a completed run",
        judge=g_an_answer_on_the_last_unit_counts,
    ),
)
"""Every check, in the order of the table of units and then of the seven classes."""


def asks(*tools: str, usage: Usage | None = None) -> ModelTurn:
    """A turn that calls the tools, each with other arguments, so that nothing looks like a loop."""
    calls = tuple(
        ToolCall(call_id="", name=name, arguments={"task" if name == "delegate" else "place": f"place {index}"})
        for index, name in enumerate(tools)
    )
    return ModelTurn(
        tool_calls=calls, usage=usage or Usage(input_tokens=20, output_tokens=5), finish_reason="tool_calls"
    )


async def _cut_run(runner: LimitRunner) -> RunEnd:
    script, look = Script([asks("look")]), CountingTool(name="look")
    return await runner.run(Scenario(script=script, tools=(look,), limits=_limits(max_model_calls=3)))


def _limits(**limits: Any) -> PlanLimits:
    return replace(PlanLimits(max_model_rounds=None), **limits)


def _over(what: str, seen: int, allowed: int) -> str | None:
    return f"{seen} {what}, {allowed} allowed" if seen > allowed else None


def _no_end(end: RunEnd, script: Script) -> str | None:
    return _waits(end) or _not_asked(script)


def _waits(end: RunEnd) -> str | None:
    return "it waits for a person" if end.status == "paused" else None


def _not_asked(script: Script) -> str | None:
    return None if script.requests else "the model was never asked"


def _unanswered(end: RunEnd) -> str | None:
    return f"{end.unanswered} tool calls in the history have no return" if end.unanswered else None


def _shown(end: RunEnd) -> str:
    error = f" error={_short(end.error)!r}" if end.error else ""
    return f"status={end.status} text={_short(end.text)!r}{error}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
