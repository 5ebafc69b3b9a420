"""Random turns, on the kernel and on the original: whoever asks sees the same."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings

from .scripts import Script, on_kernel, scripts, seen

EXAMPLES = int(os.environ.get("ENDSTOP_FUZZ_EXAMPLES", "2000"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts())
def test_a_turn_on_the_kernel_is_as_the_original(script: Script) -> None:
    """Any script, agent, limit, surface and stream mode: the same chunks, results and errors, and the kernel served."""
    agent, ledger = on_kernel(script.agent())
    assert seen(agent, script) == seen(script.agent(), script)
    assert [record.served_by for record in ledger.records()] == ["kernel"]
