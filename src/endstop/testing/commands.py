"""Commands that run the conformance kits."""

import sys
from typing import Annotated

import anyio
from cyclopts import Parameter
from typing_extensions import TypeIs

from endstop._specs import Sought, load
from endstop.testing.limits import (
    ALL_CHECKS,
    CheckResult,
    KernelRunner,
    LimitRunner,
    render_summary,
    run_check,
)


def conformance(
    spec: Annotated[
        str | None,
        Parameter(
            help="The loop: a runner at `package.module:name` or `file.py:name`. Without it: endstop's own loop."
        ),
    ] = None,
    /,
    *,
    allow_missing: Annotated[bool, Parameter(help="Limits that the loop does not have are no failure.")] = False,
) -> int:
    """Check whether an agent loop keeps its limits and ends honestly, one line a check.

    The exit code is 0 where every check holds, 1 where one fails or its limit is missing, 2 where SPEC names no runner.
    """
    tolerated = {"holds", "missing"} if allow_missing else {"holds"}
    runner = KernelRunner() if spec is None else load(spec, _RUNNER)
    return 0 if {result.verdict for result in anyio.run(_check, runner)} <= tolerated else 1


def _is_runner(found: object) -> TypeIs[LimitRunner]:
    # A class has the methods too, but is to be called for one that has them.
    return not isinstance(found, type) and all(hasattr(found, name) for name in ("name", "run", "approve"))


_RUNNER = Sought(article="a", noun="runner", kind="an object with name, run and approve", is_one=_is_runner)


async def _check(runner: LimitRunner) -> list[CheckResult]:
    _say(runner.name)
    results = list[CheckResult]()
    for check in ALL_CHECKS:
        results.append(await run_check(check, runner))
        _say(str(results[-1]))
    _say(render_summary(results))
    return results


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
