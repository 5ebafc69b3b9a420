"""docs/cases.md tells of every case, as the runs make it."""

from __future__ import annotations

from pathlib import Path

import cases
from tests.cases.outcomes import READING_ORDER

HERE = Path(__file__).resolve().parent
PAGE = cases.PAGE.read_text(encoding="utf-8")


def test_every_file_with_cases_is_in_the_reading_order() -> None:
    """A new file can't be forgotten."""
    files = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")} - {"page"}
    assert files == set(READING_ORDER)
    assert len(files) == len(READING_ORDER)


def test_the_page_has_every_row() -> None:
    """With the versions that it names, it ends as `scripts/cases.py` prints it, outcome by outcome.

    With others, what is reported and what to use must be the same.
    """
    if cases.versions() in PAGE:
        assert PAGE.endswith(cases.measured())
    else:
        rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][2:]
        assert [(row[0], row[-1]) for row in rows] == [(row[0], row[-1]) for row in cases.rows()]


def test_each_case_is_told_once() -> None:
    """Two rows with the same symptom would be one report counted twice."""
    symptoms = [row[0] for row in cases.rows()]
    assert len(set(symptoms)) == len(symptoms) == 24
