"""The conformance kit of limits: does an agent loop keep its limits, and does it end honestly when it meets one?

Each unit of `PlanLimits` and each of the seven ways in which limits are known to break is a named check. A check
writes a scenario (a scripted model, counting tools, limits), lets a runner run it, and judges by what it counted
itself: requests the model got, executions the tools saw, and what the caller was given in the end. So it can be run
on any loop behind a `LimitRunner`: the kernel here, a framework's agent, your own.

::

    for result in await check_limits(KernelRunner()):
        print(result)
"""

from endstop.testing.limits.checks import ALL_CHECKS, check_limits
from endstop.testing.limits.kernel import KernelRunner
from endstop.testing.limits.kit import (
    FINAL_ANSWER,
    FINDING,
    PATIENCE_SECONDS,
    PROBE_STOP,
    Check,
    CheckResult,
    CountingTool,
    LimitRunner,
    MissingFeature,
    ModelOutage,
    RunawayModel,
    RunEnd,
    Scenario,
    Script,
    Verdict,
    render_summary,
    run_check,
)

__all__ = [
    "ALL_CHECKS",
    "FINAL_ANSWER",
    "FINDING",
    "PATIENCE_SECONDS",
    "PROBE_STOP",
    "Check",
    "CheckResult",
    "CountingTool",
    "KernelRunner",
    "LimitRunner",
    "MissingFeature",
    "ModelOutage",
    "RunEnd",
    "RunawayModel",
    "Scenario",
    "Script",
    "Verdict",
    "check_limits",
    "render_summary",
    "run_check",
]
