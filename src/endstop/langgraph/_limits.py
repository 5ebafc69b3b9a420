"""What a bound graph may spend, has spent, and how it ended, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from endstop._limits import Number, PlanLimits, Spent, check_count, checked_counts
from endstop._results import Ending
from endstop._state import StopReason

if TYPE_CHECKING:
    from endstop._budget import Budget

SUPER_STEPS = "super_steps"
"""The unit of super-steps."""

NODE_UNIT = "node:"
"""How the unit of one node's executions begins; its name follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits(PlanLimits):
    """The limits of one run of a graph: those of `PlanLimits`, and two in LangGraph's own units.

    `max_super_steps` bounds the super-steps of the graph and of every graph run inside it: nodes that
    run at once are one. `node_limits` bounds how often a node is started, by its name, wherever a node
    of that name stands. Both are counted before the node runs, so that neither is overrun.

    Nothing is limited that is not set: a graph has no default of model rounds, as an agent of the kernel has.

    A *model round* of a graph is a super-step in which a model is called; what is one tool execution,
    one model call or one token is as in `PlanLimits`.

    Raises:
        ConfigError: a value is negative, not a number (`bool` included), or not one of the choices.
    """

    max_model_rounds: int | None = None
    max_super_steps: int | None = None
    node_limits: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        PlanLimits.__post_init__(self)
        check_count("max_super_steps", self.max_super_steps, required=False)
        object.__setattr__(self, "node_limits", checked_counts("node_limits", self.node_limits, of="nodes"))

    def bounds(self) -> dict[str, Number]:
        """What is allowed of each unit that is counted and limited, by unit."""
        steps: dict[str, Number] = {} if self.max_super_steps is None else {SUPER_STEPS: self.max_super_steps}
        nodes = {NODE_UNIT + node: bound for node, bound in self.node_limits.items()}
        return PlanLimits.bounds(self) | steps | nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpent(Spent):
    """What a run of a graph has spent: all that `Spent` says, its super-steps, and how often each node was started.

    Graphs that were run inside it are included.
    """

    super_steps: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict[str, int])

    def amounts(self) -> dict[str, Number]:
        """What is spent of each unit that is counted, by unit."""
        nodes = {NODE_UNIT + node: count for node, count in self.nodes.items()}
        return Spent.amounts(self) | {SUPER_STEPS: self.super_steps} | nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEnding(Ending):
    """Why and how a run of a graph ended that did not complete.

    Beside what `Ending` says: `stop_reason` is `tool_limit` (the model rounds were used up), `budget`
    (any other limit was) or `loop`; `text` is the answer that the run ends with; `spent` is what it has
    spent, all its legs together; `skipped` are the nodes that LangGraph runs after an agent's answer and
    that did not run (the `after_agent` hooks of middleware).
    """

    stop_reason: StopReason
    text: str
    spent: GraphSpent
    skipped: tuple[str, ...] = ()


def spent_of(budget: Budget, now: float) -> GraphSpent:
    """What a budget has spent, in the terms of a graph."""
    spent = budget.spent(now)
    amounts = budget.amounts()
    nodes = {unit.removeprefix(NODE_UNIT): int(n) for unit, n in amounts.items() if unit.startswith(NODE_UNIT)}
    common = {entry.name: getattr(spent, entry.name) for entry in fields(Spent)}
    return GraphSpent(**common, super_steps=int(amounts.get(SUPER_STEPS, 0)), nodes=nodes)
