"""The bench's table, from real runs: what the plain rules do, and what the detector adds."""

from __future__ import annotations

import pytest

from endstop._loops import LoopDetector
from endstop.langgraph.step_budget import BANNERS, StepBudgetSettings
from examples.research_assistant import bench_table
from examples.research_assistant.bench import OFF, Row, bench, run_scenario

TABLE = """\
| scenario | end | steps | truncated | banner |
|---|---|---|---|---|
| before | local_limit_stop | 9 | no | no |
| step budget on, max 8 | honest_truncate | 9 | yes | yes |
| loop detection on, window 3 | local_limit_stop | 9 | no | no |
| both | honest_truncate | 9 | yes | yes |
| endstop's detector | honest_truncate | 7 | yes | yes |"""


def test_the_table_is_the_contracts_with_a_fifth_row() -> None:
    """Writer and reviewer alternate, so the last three are never the same; the detector sees the cycle."""
    assert bench_table() == TABLE


def test_the_detector_ends_the_run_before_the_step_budget_does() -> None:
    """With both on, the detector's ending comes first: in fewer steps than the budget's eight."""
    budget = StepBudgetSettings(enable_step_budget=True, max_total_steps=8)
    assert run_scenario("both and the detector", budget, LoopDetector()) == Row(
        scenario="both and the detector", end="honest_truncate", steps=7, truncated=True, banner=True
    )


@pytest.mark.parametrize(("most", "end", "steps"), [(7, "honest_truncate", 9), (9, "local_limit_stop", 9)])
def test_beside_the_limit_the_bench_tells_other_things(most: int, end: str, steps: int) -> None:
    """The last review asks at eight: a budget of nine is not used up by then, and the guard ends the run."""
    budget = StepBudgetSettings(enable_step_budget=True, max_total_steps=most)
    row = run_scenario("beside", budget, None)
    assert (row.end, row.steps, row.truncated) == (end, steps, end == "honest_truncate")


def test_the_rows_are_measured_anew_each_time() -> None:
    """No scenario leaves anything to the next."""
    assert bench() == bench()
    assert run_scenario("before", OFF, None).banner is False
    assert all(banner.startswith("⚠️") for banner in BANNERS.values())
