"""Bound agents keep every limit in the way that the conformance kit asks of any agent loop."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from endstop.testing.limits import ALL_CHECKS, Check, run_check

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNERS = Path(__file__).resolve().parents[2] / "examples" / "runners"


@pytest.fixture(scope="module")
def runners() -> Iterator[Any]:
    """The runners as the command loads them: with their folder on the path; what they left unfinished complains."""
    sys.path.insert(0, str(RUNNERS))
    try:
        yield importlib.import_module("bound_graph")
    finally:
        sys.path.remove(str(RUNNERS))
        gc.collect()


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("wiring", ["create_agent", "middleware", "react_agent"])
async def test_a_bound_agent_keeps_its_limits(runners: Any, wiring: str, check: Check) -> None:
    """`bound(create_agent(...))`, `create_agent` with a `BoundMiddleware`, and `bound(create_react_agent(...))`."""
    result = await run_check(check, getattr(runners, wiring))
    assert (result.verdict, result.detail) == ("holds", "")
