"""The part of scripts/parity.py that runs inside the suites: a pytest plugin that writes a line of JSON for each test.

A line has the test's `id`, its `outcome`, and its `turns`: for each turn of an agent that is cut over, the refusals
that kept it from the kernel, none where the kernel served it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from endstop.cutover.ledger import MemoryTurnLedger, use_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = "ENDSTOP_PARITY_REPORT"
"""The environment variable that names the file to write."""

HARDEST_LAST = ("passed", "skipped", "failed")


class Witness:
    """Sees how each test ends, and lays out a ledger of its own for each."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._outcome = HARDEST_LAST[0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        ledger = MemoryTurnLedger()
        before = use_ledger(ledger)
        self._outcome = HARDEST_LAST[0]
        try:
            return (yield)
        finally:
            use_ledger(before)
            turns = [sorted(record.refusals) for record in ledger.records()]
            line = json.dumps({"id": item.nodeid, "outcome": self._outcome, "turns": turns})
            with self._report.open("a", encoding="utf-8") as file:
                print(line, file=file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test failed where its set-up, its call or its clean-up did."""
        self._outcome = max(self._outcome, report.outcome, key=HARDEST_LAST.index)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Witness(Path(os.environ[REPORT])), "endstop-parity")
