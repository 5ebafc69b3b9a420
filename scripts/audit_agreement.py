"""Prints how often `audit` and real runs agree: every wiring of tests/langgraph/wirings.py at every limit from 3 to 60.

For each pair the audit says how many rounds can finish and in how many the model is called, and the graph is run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
LIMITS = range(3, 61)
HEAD = ("wiring", "entry", "round", "exit", f"agree at limits {LIMITS[0]} to {LIMITS[-1]}")


def main() -> None:
    """Compare all wirings, as many at a time as there are cores."""
    # What is run here is to be reported nowhere.
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")
    started, wirings = time.perf_counter(), _wirings().WIRINGS
    agreed, compared, differences = 0, 0, []
    _row(*HEAD)
    _row(*("---" for _ in HEAD))
    with multiprocessing.Pool() as pool:
        for found in pool.imap(compare, (number for number, wiring in enumerate(wirings) if not wiring.needs)):
            costs = found.costs
            per_round = "-" if costs.per_round is None else costs.per_round
            _row(found.wiring, costs.entry, per_round, costs.exit, f"{found.agreed} of {found.limits}")
            agreed, compared = agreed + found.agreed, compared + found.limits
            differences += found.differences
    for wiring in wirings:
        if wiring.needs:
            print(f"left out: {wiring.name}: {wiring.needs}")
    print(*differences, f"{agreed:,} of {compared:,} agree", sep="\n")
    print(f"langgraph {version('langgraph')}, langchain {version('langchain')}")
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    sys.exit(1 if differences else 0)


def compare(number: int) -> object:
    """Compare one wiring with its runs."""
    warnings.simplefilter("ignore")
    return _wirings().agreement(_wirings().WIRINGS[number], LIMITS)


def _row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _wirings() -> ModuleType:
    # They belong to the tests, which are found from the root of the repository alone.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return import_module("tests.langgraph.wirings")


if __name__ == "__main__":
    main()
