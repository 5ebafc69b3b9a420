"""What a replay found, for people and for programs."""

from __future__ import annotations

import html
import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from endstop.cutover._compare import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from endstop._messages import JsonValue

_SHOWN = 200
_STYLE = """
:root { color-scheme: light dark; --line: #d8dde3; --soft: #5b6570; --bad: #b3261e; --good: #1a7f37; --wait: #8a6100 }
@media (prefers-color-scheme: dark) {
  :root { --line: #363d45; --soft: #9aa4af; --bad: #ff8a80; --good: #5fd07e; --wait: #e3b341 }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } section { border-top: 1px solid var(--line); padding: .75rem 0 }
h2 { font-size: 1rem; margin: 0 } table { border-collapse: collapse; width: 100%; margin-top: .5rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 500 } code { font-size: .85em; overflow-wrap: anywhere; white-space: pre-wrap }
.same { color: var(--good) } .different, .failed { color: var(--bad) } .refused { color: var(--wait) }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTurn:
    """One turn that was replayed: what differed, by which codes it was refused, or why it could not be replayed."""

    run_id: str
    differences: tuple[Difference, ...] = ()
    refused_by: tuple[str, ...] = ()
    error: str | None = None

    @property
    def verdict(self) -> str:
        """`failed`, `refused`, `different` or `same`."""
        if self.error is not None:
            return "failed"
        if self.refused_by:
            return "refused"
        return "different" if self.differences else "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What came of the turns of a tape. Under `strict` a refused turn fails the report too."""

    turns: tuple[ReplayedTurn, ...]
    strict: bool = False

    @property
    def exit_code(self) -> int:
        """0 where every turn that was replayed is the same, else 1."""
        failing = {"different", "failed"} | ({"refused"} if self.strict else set[str]())
        return int(any(turn.verdict in failing for turn in self.turns))

    @property
    def summary(self) -> str:
        """One line: how many turns there are of each verdict."""
        counts = Counter(turn.verdict for turn in self.turns)
        told = [f"{counts[verdict]} {verdict}" for verdict in ("same", "different", "refused", "failed")]
        return f"{len(self.turns)} turns: {', '.join(told)}"

    def to_text(self) -> str:
        """The summary, and below it what is to say of each turn that is not the same."""
        lines = [self.summary]
        for turn in self.turns:
            if turn.verdict != "same":
                lines.append(f"\n{turn.run_id}: {turn.verdict}{_reason(turn)}")
                lines += [f"  {one.code} at {one.where}\n    {_sides(one)}" for one in turn.differences]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The report as a JSON object: `exit_code`, `summary` and the `turns`, each with its `verdict`."""
        turns = [{**asdict(turn), "verdict": turn.verdict} for turn in self.turns]
        return json.dumps({"exit_code": self.exit_code, "summary": self.summary, "turns": turns}, indent=2)

    def to_html(self) -> str:
        """The report as one page that needs nothing else."""
        body = "\n".join(part for turn in self.turns for part in _section(turn))
        return (
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Replay</title>\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<style>{_STYLE}</style>\n<h1>Replay</h1>\n<p>{self.summary}</p>\n{body}\n</html>\n"
        )


def _reason(turn: ReplayedTurn) -> str:
    told = turn.error or ", ".join(turn.refused_by)
    return f" ({told})" if told else ""


def _sides(difference: Difference) -> str:
    return f"recorded {_short(difference.recorded)}\n    replayed {_short(difference.replayed)}"


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _section(turn: ReplayedTurn) -> Iterator[str]:
    yield f'<section><h2><code>{html.escape(turn.run_id)}</code> <span class="{turn.verdict}">{turn.verdict}</span>'
    yield f"{html.escape(_reason(turn))}</h2>"
    if turn.differences:
        yield "<table><tr><th>code<th>where<th>recorded<th>replayed"
        for one in turn.differences:
            sides = "".join(f"<td><code>{html.escape(_long(side))}</code>" for side in (one.recorded, one.replayed))
            yield f"<tr><td>{one.code}<td>{html.escape(one.where)}{sides}"
        yield "</table>"
    yield "</section>"


def _long(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
