"""Runs the cases of tests/cases and prints a table: each symptom that people report, today and with endstop.

Nothing in the table is typed in: each cell is what a run on a fake model came to. `--write` puts it into docs/cases.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cases.md"
MEASURED_WITH = ("langgraph", "langchain")
HEAD = ("symptom", "today", "with endstop", "use")
OPENING = "Measured with "
"""How the part of the page begins that is written here; it goes on to the end."""


def rows() -> list[tuple[str, str, str, str]]:
    """Each case: its symptom, the outcome today and with endstop, and what of endstop to use."""
    # The cases belong to the tests, which are found from the root of the repository alone.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    found = import_module("tests.cases.outcomes").all_cases()
    return [(case.symptom, str(case.today()), str(case.ours()), case.use) for case in found]


def measured() -> str:
    """The versions, and the rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *rows()]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{versions()}\n\n{table}\n"


def versions() -> str:
    """What the cases are measured with, in a sentence."""
    return f"{OPENING}{' and '.join(f'{package} {version(package)}' for package in MEASURED_WITH)}:"


def main(arguments: list[str]) -> None:
    """Prints the table, or writes it into the page."""
    if arguments == ["--write"]:
        kept = PAGE.read_text(encoding="utf-8").partition(OPENING)[0]
        PAGE.write_text(kept + measured(), encoding="utf-8")
    elif arguments:
        sys.exit("usage: python scripts/cases.py [--write]")
    else:
        print(measured(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
