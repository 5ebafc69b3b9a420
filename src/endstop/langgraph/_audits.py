"""What an audit says, as plain data: limit, costs, cycles, worst case and findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from endstop.langgraph._audit_text import document, report
from endstop.langgraph._graph_map import Bounded, GraphMap

Severity: TypeAlias = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the least to the gravest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveLimit:
    """The recursion limit that a run is under: `super_steps`, and in words where they come from.

    `explicit` says that a caller or a config named it, and that it is handed on to the graphs below.
    """

    super_steps: int
    source: str
    explicit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a graph's owner should know. `where` is the node, or the path of nodes, that it is about."""

    code: str
    severity: Severity
    explanation: str
    remedy: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of the model under a limit: those in which a run can finish, and those in which the model is called.

    Where `called` is larger, the last call is paid for and lost: the error comes before its answer is used.
    """

    finish: int
    called: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Super-steps of a run whose model answers in `r` rounds: `entry + exit + per_round * (r - 1)`.

    `entry` is counted up to and including the first call of the node `model`, `exit` after the last one. `per_round` is
    that of a tool round, `per_cycle` that of the shortest way back to the model (a repeated structured answer, say);
    `None` where there is no way back. Every run takes at least `least`. A cap allows no more than
    `most_rounds`. `exact` is false where several nodes may run at once, or where the graph does not say all its edges:
    the numbers of rounds are upper bounds then.
    """

    model: str
    entry: int
    exit: int
    per_round: int | None
    per_cycle: int | None
    least: int = 0
    most_rounds: int | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """An elementary cycle: its nodes in order, and the caps that bound it (empty: nothing but the recursion limit).

    `declared` is false where it needs an edge that the graph does not declare.
    """

    nodes: tuple[str, ...]
    caps: tuple[str, ...] = ()
    declared: bool = True

    def __str__(self) -> str:
        return " -> ".join((*self.nodes, self.nodes[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The most that a run can take, in one unit.

    `exact` says that a run which keeps the caps reaches `number`; else it is an upper bound. `formula` is a bound in
    the caps: whatever they are, no run takes more. With these caps it comes to `formula_number`.
    """

    number: int
    exact: bool
    formula: str
    formula_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The worst case of a whole graph, all its loops together; with a subgraph as one node.

    `node_executions` counts every task, `super_steps` what the recursion limit counts: parallel tasks are one.
    """

    node_executions: Worst
    super_steps: Worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a graph can do, read from its structure; it was not run.

    `costs` and `rounds` are `None` where no node calls a model, or several do and none was named. `worst_case` is
    `None` where a cycle has no cap, and for an entrypoint, whose tasks are not known. `cycles_cut` says that there are
    more elementary cycles than are listed. `caps` and `fan_out` are those that were given, and the caps that a
    middleware sets. `findings` has the gravest first, those about `subgraphs` included: the audits of the graphs that
    are nodes of this one. `path` is where this one stands. What limits of endstop's hold its runs is `bounded`.
    """

    graph: GraphMap
    limit: EffectiveLimit
    costs: Costs | None
    rounds: Rounds | None
    cycles: tuple[Cycle, ...]
    cycles_cut: bool
    worst_case: WorstCase | None
    findings: tuple[Finding, ...]
    caps: Mapping[str, int]
    fan_out: Mapping[str, int]
    path: str = ""
    bounded: Bounded | None = None
    subgraphs: tuple[Audit, ...] = ()

    def to_json(self) -> str:
        """The audit as a JSON document; keys are the fields' names."""
        return json.dumps(document(self), ensure_ascii=False)

    def __str__(self) -> str:
        """A report for people, without a line break at its end."""
        return report(self)
