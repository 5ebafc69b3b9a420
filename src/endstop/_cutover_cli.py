"""The commands of the cutover: what the kernel would serve, what it would do otherwise, and what it has served."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path  # noqa: TC003 - the command line is built of the annotations
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from endstop._errors import ConfigError
from endstop._options import text_option
from endstop._specs import Sought, load
from endstop.cutover._report import report as report_on
from endstop.cutover.envelope import Refusal, check_agent
from endstop.cutover.ledger import open_ledger
from endstop.cutover.rehearsal import replay_agent
from endstop.cutover.rounds import rounds_for_graph
from endstop.langgraph._compat import is_graph

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from endstop.langgraph._compat import AnyPregel

_SPEC = "The agent's graph: `package.module:name`, `file.py:name`, or `folder:name` of a package's folder."


def check(
    spec: Annotated[str, Parameter(help=_SPEC)],
    /,
    *,
    json: Annotated[bool, text_option("Write what is found as one JSON document.")] = False,
) -> int:
    """Say whether the kernel would serve an agent's turns, and what is in the way where it would not.

    Nothing runs. The exit code is 0 where it would, 1 where it would refuse every turn, and 2 where there is no graph.
    """
    with contextlib.redirect_stdout(sys.stderr):  # What the module prints when it is loaded is no part of the report.
        graph: Any = load(spec, _GRAPH)
    refusals = check_agent(graph)
    sys.stdout.write(f"{_as_json(spec, refusals) if json else _as_text(spec, graph, refusals)}\n")
    return 1 if refusals else 0


def replay(
    tape: Annotated[Path, Parameter(help="What `record` wrote.")],
    spec: Annotated[str, Parameter(help="The agent, made by `endstop.cutover.create_agent` or `create_react_agent`.")],
    /,
    *,
    surface: Annotated[str | None, text_option("Only turns of the agent of this name.")] = None,
    strict: Annotated[bool, text_option("Let a turn that the kernel refuses count as a difference.")] = False,
    json: Annotated[bool, text_option("Write the report as one JSON document.")] = False,
    html: Annotated[Path | None, text_option("Write the report as a page into this file as well.")] = None,
) -> int:
    """Run recorded turns again on the kernel, with the recorded answers and results, and say what differs.

    No model is billed and no tool acts. The exit code is 0 where every turn is the same, 1 where one differs or could
    not be replayed, and 2 where there is no tape or no agent.
    """
    with contextlib.redirect_stdout(sys.stderr):
        graph: Any = load(spec, _GRAPH)
        found = replay_agent(tape, graph, surface=surface, strict=strict)
    if html is not None:
        _write(html, found.to_html())
    sys.stdout.write(f"{found.to_json() if json else found.to_text()}\n")
    return found.exit_code


def report(
    ledger: Annotated[Path, Parameter(help="The file that `SqliteTurnLedger` writes.")],
    /,
    *,
    since: Annotated[
        str | None, text_option("From this time on (ISO 8601; without an offset it is local time).")
    ] = None,
    until: Annotated[str | None, text_option("Up to but not including this time.")] = None,
    json: Annotated[bool, text_option("Write the report as one JSON document.")] = False,
) -> int:
    """Say what ran where, what fell back and why, and whether the window is clean.

    The exit code is 0 where every surface that had turns is clean, 1 where one is not or none had any, and 2 where
    there is no ledger.
    """
    found = report_on(open_ledger(ledger), _time("--since", since), _time("--until", until))
    sys.stdout.write(f"{found.to_json() if json else found.to_text()}\n")
    return 0 if found.is_clean else 1


def _as_text(spec: str, graph: Any, refusals: tuple[Refusal, ...]) -> str:
    if not refusals:
        rounds = [f"  at recursion_limit {limit}: {_rounds(graph, limit)}" for limit in (25, 50)]
        return "\n".join(
            [f"{spec}: the kernel serves its turns", *rounds, "what it refuses of a call: docs/envelope.md"]
        )
    lines = [f"{spec}: the kernel refuses every turn, which its graph goes on to serve"]
    for refusal in refusals:
        lines += [f"  {refusal.code}: {refusal.why}", f"    {refusal.remedy}"]
    return "\n".join(lines)


def _rounds(graph: Any, limit: int) -> str:
    rounds = rounds_for_graph(graph, limit)
    return f"{rounds.finish} rounds can finish, the model is asked at most {rounds.called} times"


def _as_json(spec: str, refusals: tuple[Refusal, ...]) -> str:
    return json.dumps({"spec": spec, "served": not refusals, "refusals": [asdict(refusal) for refusal in refusals]})


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--html", str(file), "name a file in a folder that can be written to") from error


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise ConfigError(option, text, "write a time such as 2026-11-30T08:00+01:00") from error


def _is_graph(found: object) -> TypeIs[AnyPregel]:
    return is_graph(found)


_GRAPH = Sought(article="a", noun="graph", kind="a compiled LangGraph graph", is_one=_is_graph)
