"""An audit in words, and as a document."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from endstop.langgraph._audits import Audit, Worst

_MOST_CYCLES = 8
_WIDTH = 110
_TITLE_WIDTH = 13


def report(audit: Audit) -> str:
    """The figures of the graph and of those below it, and then the findings, the gravest first."""
    lines = list(_figures(audit))
    for finding in audit.findings:
        where = f" at {finding.where}" if finding.where else ""
        lines += ["", f"{finding.severity}: {finding.code}{where}"]
        lines += _wrapped(finding.explanation, "  ")
        lines += _wrapped(f"-> {finding.remedy}", "  ", more="     ")
    return "\n".join(lines)


def document(audit: Audit) -> dict[str, object]:
    """The audit as JSON can hold it. Of a node it has what it is, and not what stands below it."""
    return {
        "format": "endstop/audit",
        "version": 1,
        "name": audit.graph.name,
        "path": audit.path,
        "limit": asdict(audit.limit),
        "bounded": audit.bounded and asdict(audit.bounded),
        "costs": audit.costs and asdict(audit.costs),
        "rounds": audit.rounds and asdict(audit.rounds),
        "worst_case": audit.worst_case and asdict(audit.worst_case),
        "cycles": [asdict(cycle) for cycle in audit.cycles],
        "cycles_cut": audit.cycles_cut,
        "caps": dict(audit.caps),
        "fan_out": dict(audit.fan_out),
        "findings": [asdict(finding) for finding in audit.findings],
        "nodes": [
            {"name": node.name, "kind": node.kind, "hook": node.hook, "tools": list(node.tools)}
            for node in audit.graph.nodes
        ],
        "edges": [asdict(edge) for edge in audit.graph.edges],
        "unknown": [asdict(unknown) for unknown in audit.graph.unknown],
        "subgraphs": [document(below) for below in audit.subgraphs],
    }


def _figures(audit: Audit) -> Iterator[str]:
    nodes = _count(len(audit.graph.nodes) - 2, "node")
    yield f"{audit.path or audit.graph.name}: {nodes}, {_count(len(audit.graph.edges), 'edge')}"
    yield from _row("limit", f"{_count(audit.limit.super_steps, 'super-step')} ({audit.limit.source})")
    if audit.bounded is not None:
        yield from _row("bounded", f"by {audit.bounded.by}: {audit.bounded.limits}")
    yield from _rounds(audit)
    yield from _cycles(audit)
    if audit.worst_case is None:
        functional = audit.graph.api == "functional"
        why = "the tasks of an entrypoint are not counted" if functional else "not every cycle has a cap"
        most = "unbounded" if audit.bounded is None else f"bounded by {audit.bounded.by} alone"
        yield from _row("worst case", f"{most}: {why}")
    else:
        yield from _row("worst case", _worst(audit.worst_case.node_executions, "node execution"))
        yield from _row("", _worst(audit.worst_case.super_steps, "super-step"))
    for below in audit.subgraphs:
        yield ""
        yield from _figures(below)


def _rounds(audit: Audit) -> Iterator[str]:
    if audit.costs is None or audit.rounds is None:
        return
    costs, rounds, most = audit.costs, audit.rounds, "" if audit.costs.exact else "at most "
    yield from _row("rounds", f"{most}{rounds.finish:,} can finish, {costs.model!r} can be called in {rounds.called:,}")
    again = "no way back to it" if costs.per_round is None else f"{costs.per_round} for each further round"
    yield from _row("", f"{_count(costs.entry, 'super-step')} for the first, {again}, {costs.exit} after the last")
    if costs.per_cycle != costs.per_round:
        yield from _row("", f"{costs.per_cycle} where the model is called again without a tool")


def _cycles(audit: Audit) -> Iterator[str]:
    shown = audit.cycles[:_MOST_CYCLES]
    if not shown:
        yield from _row("cycles", "none")
    for number, cycle in enumerate(shown):
        bounded = ", ".join(f"at most {audit.caps[cap]:,} times {cap}" for cap in cycle.caps) or "no cap"
        undeclared = "" if cycle.declared else "; over an edge that is not declared"
        yield from _row("" if number else "cycles", f"{cycle} ({bounded}{undeclared})")
    others = len(audit.cycles) - len(shown)
    if others or audit.cycles_cut:
        yield from _row("", f"and {others}{', and more that were not counted' if audit.cycles_cut else ' more'}")


def _worst(worst: Worst, unit: str) -> str:
    most = "" if worst.exact else "at most "
    same = "=" if worst.number == worst.formula_number else "(in general at most)"
    return f"{most}{_count(worst.number, unit)} {same} {worst.formula}"


def _row(title: str, text: str) -> Iterator[str]:
    yield from _wrapped(text, f"  {title:<{_TITLE_WIDTH}}", more=" " * (_TITLE_WIDTH + 2))


def _wrapped(text: str, first: str, *, more: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=first if more is None else more,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
