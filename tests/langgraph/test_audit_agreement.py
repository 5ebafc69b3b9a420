"""What an audit says of a wiring's rounds is what its runs do, at every limit that is tried."""

from __future__ import annotations

import pytest
from langchain.agents.middleware import ToolCallLimitMiddleware

from endstop.langgraph._costs import costs_of, rounds_under
from endstop.langgraph._reading import read_graph
from tests.langgraph.wirings import WIRINGS, Wiring, agreement

LIMITS = (3, 4, 5, 6, 7, 8, 9, 13, 25)
"""Each residue of the longest round, and the default; scripts/audit_agreement.py tries all from 3 to 60."""


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.name)
def test_the_audit_agrees_with_real_runs(wiring: Wiring) -> None:
    """The rounds that can finish finish, one more does not, and the model is called as often as was said."""
    if wiring.needs:
        pytest.skip(wiring.needs)
    found = agreement(wiring, LIMITS)
    assert found.costs.exact
    assert found.differences == ()


CONTRACT = {
    "react v2": (1, 2, 12, 25),
    "create_agent": (1, 2, 12, 25),
    "custom graph with an entry node": (2, 2, 12, 24),
    "before_agent": (2, 2, 12, 24),
    "before_model": (2, 3, 8, 16),
    "after_model": (2, 3, 8, 16),
    "2 before_model": (3, 4, 6, 12),
    "2 after_model": (3, 4, 6, 12),
    "all four hooks": (5, 4, 5, 12),
    "ModelCallLimit": (3, 4, 6, 12),
    "Summarization": (2, 3, 8, 16),
    "ModelCallLimit and ToolCallLimit": (4, 5, 5, 10),
    "wrap_model_call": (1, 2, 12, 25),
    "wrap_tool_call": (1, 2, 12, 25),
    "ToolRetry": (1, 2, 12, 25),
    "ModelFallback": (1, 2, 12, 25),
    "react with pre_model_hook": (2, 3, 8, 16),
    "react with both hooks": (3, 4, 6, 12),
    "react with response_format": (2, 2, 12, 24),
}
"""Wiring -> super-steps of a run of one round, of each further round, and the rounds that finish at 25 and at 50."""


@pytest.mark.parametrize("name", CONTRACT)
def test_the_costs_are_those_of_the_table(name: str) -> None:
    """Entry and exit together, a further round, and the rounds that can finish."""
    if name.endswith("ToolCallLimit") and "before_model" in vars(ToolCallLimitMiddleware):
        pytest.skip("the limit on tools of this langchain has one hook more")
    wiring = next(wiring for wiring in WIRINGS if wiring.name == name)
    costs = costs_of(read_graph(wiring.build(wiring.model())))
    assert costs is not None
    rounds = [rounds_under(costs, limit).finish for limit in (25, 50)]
    assert (costs.entry + costs.exit, costs.per_round, *rounds) == CONTRACT[name]
