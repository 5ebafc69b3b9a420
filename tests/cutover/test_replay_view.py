"""A replay report for people, programs and pipelines."""

from __future__ import annotations

import json
import re

import pytest

from endstop.cutover._compare import Difference
from endstop.cutover._replay_view import ReplayedTurn, ReplayReport

DIFFERENCE = Difference(code="tool_calls", where="round 1", recorded={"name": "<b>" + "x" * 300}, replayed=None)
SAME = ReplayedTurn(run_id="same-1")
DIFFERENT = ReplayedTurn(run_id="different-1", differences=(DIFFERENCE,))
REFUSED = ReplayedTurn(run_id="refused-1", refused_by=("context_schema", "node_cache"))
FAILED = ReplayedTurn(run_id="failed-1", error="it has no end & more")
ALL = ReplayReport(turns=(SAME, DIFFERENT, REFUSED, FAILED))


@pytest.mark.parametrize(
    ("turns", "strict", "code"),
    [
        ((), False, 0),
        ((SAME,), True, 0),
        ((SAME, DIFFERENT), False, 1),
        ((SAME, FAILED), False, 1),
        ((SAME, REFUSED), False, 0),
        ((SAME, REFUSED), True, 1),
    ],
)
def test_the_exit_code_is_for_a_pipeline(turns: tuple[ReplayedTurn, ...], strict: bool, code: int) -> None:
    """A refused turn is no difference, and fails where one is strict."""
    assert ReplayReport(turns=turns, strict=strict).exit_code == code


def test_the_text_tells_what_is_not_the_same() -> None:
    """The counts first; a long value is cut."""
    text = ALL.to_text()
    assert text.startswith("4 turns: 1 same, 1 different, 1 refused, 1 failed\n")
    assert "refused-1: refused (context_schema, node_cache)" in text
    assert "failed-1: failed (it has no end & more)" in text
    assert "tool_calls at round 1\n    recorded {" in text
    assert "same-1" not in text
    assert max(map(len, text.splitlines())) < 220


def test_the_json_is_whole() -> None:
    """Every turn, its verdict and both sides of each difference."""
    read = json.loads(ALL.to_json())
    assert [turn["verdict"] for turn in read["turns"]] == ["same", "different", "refused", "failed"]
    assert read["turns"][1]["differences"][0]["recorded"] == DIFFERENCE.recorded
    assert read["exit_code"] == 1


def test_the_page_needs_nothing_else_and_shows_what_it_is_given_as_text() -> None:
    """No address, no script; what comes from a tape is escaped."""
    page = ALL.to_html()
    assert not re.search(r"https?:|src=|<script|<b>", page)
    assert "&lt;b&gt;" in page
    assert "it has no end &amp; more" in page
    assert all(turn.run_id in page for turn in ALL.turns)
