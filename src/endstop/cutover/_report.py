"""A window of the ledger for people and for programs: what ran where, what is in the way, and the verdict."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from endstop.cutover._turn_records import Body, Fallbacks, TurnRecord, most_first
from endstop.cutover.switches import SURFACES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from endstop.cutover.ledger import TurnLedger

REMEDIES = "docs/envelope.md#the-codes"
"""Where each code of a refusal stands with its remedy."""

_BODIES: tuple[Body, ...] = ("kernel", "legacy")
_TITLE_WIDTH = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long the turns of one body took, in milliseconds: half at most `p50_ms`, 95 of 100 at most `p95_ms`."""

    turns: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceReport:
    """The turns of one surface.

    `fallbacks` is what they add up to. All else is of the records that the ledger knows one by one: `legacy_by_switch`
    counts the turns of the legacy body by the setting of the switch, `refused_in_shadow` by code the shadow turns that
    the kernel would have refused, `durations` and `spent` are by body.
    """

    fallbacks: Fallbacks
    legacy_by_switch: Mapping[str, int] = field(default_factory=dict[str, int])
    refused_in_shadow: Mapping[str, int] = field(default_factory=dict[str, int])
    durations: Mapping[Body, Durations] = field(default_factory=dict[Body, Durations])
    spent: Mapping[Body, Mapping[str, Decimal]] = field(default_factory=dict[Body, dict[str, Decimal]])

    @property
    def verdict(self) -> str:
        """One line: whether the surface is clean, and what is in the way."""
        if self.fallbacks.is_clean:
            return f"clean: {_count(self.fallbacks.on_kernel, 'turn')} on the kernel"
        return f"not clean: {'; '.join(self.fallbacks.problems)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The turns of a window, by surface; one on which no turn ran is left out."""

    since: datetime | None
    until: datetime | None
    surfaces: tuple[SurfaceReport, ...]

    @property
    def is_clean(self) -> bool:
        """Whether turns ran and each surface that had some is clean."""
        return bool(self.surfaces) and all(surface.fallbacks.is_clean for surface in self.surfaces)

    def to_text(self) -> str:
        """The report for people."""
        window = f"from {_time(self.since, 'the first turn')} to {_time(self.until, 'the last')}"
        if not self.surfaces:
            return f"no turn {window}"
        return "\n\n".join("\n".join([f"{part.fallbacks.surface} {window}", *_rows(part)]) for part in self.surfaces)

    def to_json(self) -> str:
        """The report for programs, as one JSON document; amounts that were spent are text."""
        document = {
            "format": "endstop/cutover-report",
            "version": 1,
            "since": self.since and self.since.isoformat(),
            "until": self.until and self.until.isoformat(),
            "is_clean": self.is_clean,
            "surfaces": [
                asdict(surface) | {"is_clean": surface.fallbacks.is_clean, "verdict": surface.verdict}
                for surface in self.surfaces
            ],
        }
        return json.dumps(document, default=_plain)


def report(ledger: TurnLedger, since: datetime | None = None, until: datetime | None = None) -> Report:
    """The report on a window of a ledger, from `since` up to but not including `until`; `None` is no bound.

    Raises:
        ConfigError: a time has no time zone.
        LedgerError: the ledger cannot be read.
    """
    parts = [
        _surface_report(
            ledger.fallbacks(surface, since=since, until=until),
            ledger.records(surface, since=since, until=until),
        )
        for surface in SURFACES
    ]
    found = tuple(part for part in parts if part.fallbacks.turns or part.fallbacks.forgotten)
    return Report(since=since, until=until, surfaces=found)


def _surface_report(fallbacks: Fallbacks, records: Iterable[TurnRecord]) -> SurfaceReport:
    switches: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    durations: defaultdict[Body, list[float]] = defaultdict(list)
    spent: defaultdict[Body, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for record in records:
        durations[record.served_by].append(record.duration_ms)
        for unit, amount in record.spent.items():
            spent[record.served_by][unit] += Decimal(str(amount))
        if record.served_by == "legacy":
            switches[record.switch] += 1
        if record.route == "shadow":
            refused.update(set(record.refusals))
    return SurfaceReport(
        fallbacks=fallbacks,
        legacy_by_switch=most_first(switches),
        refused_in_shadow=most_first(refused),
        durations={body: _durations(durations[body]) for body in _BODIES if durations[body]},
        spent={body: dict(spent[body]) for body in _BODIES if spent[body]},
    )


def _durations(milliseconds: Sequence[float]) -> Durations:
    ordered = sorted(milliseconds)
    return Durations(turns=len(ordered), p50_ms=_percentile(ordered, 50), p95_ms=_percentile(ordered, 95))


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest of the values that at least so many percent of them do not pass."""
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _rows(part: SurfaceReport) -> Iterator[str]:
    counts = part.fallbacks
    yield _row("turns", f"{counts.turns:,}")
    yield _row(
        "on kernel", f"{counts.on_kernel:,}" + (f" ({counts.cancelled:,} broken off)" if counts.cancelled else "")
    )
    yield _row("by legacy", _listed(part.legacy_by_switch) or "0")
    yield _row("fell back", f"{counts.fell_back:,}{_codes(counts.by_code)}")
    if part.refused_in_shadow:
        yield _row("in shadow", f"refused{_codes(part.refused_in_shadow)}")
    yield _row("errors", _listed(counts.errors) or "0")
    yield _row("differences", _listed(counts.differences) or "0")
    for body, took in part.durations.items():
        yield _row("duration", f"{body} p50 {took.p50_ms:,.0f} ms, p95 {took.p95_ms:,.0f} ms")
    for body, amounts in part.spent.items():
        yield _row("spent", f"{body} {', '.join(f'{unit} {amount:,}' for unit, amount in amounts.items())}")
    yield _row("verdict", part.verdict)


def _row(title: str, text: str) -> str:
    return f"  {title:<{_TITLE_WIDTH}}{text}"


def _codes(counts: Mapping[str, int]) -> str:
    return f": {_listed(counts)} (remedies: {REMEDIES})" if counts else ""


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time(time: datetime | None, unbounded: str) -> str:
    return unbounded if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _plain(value: object) -> str:
    """What JSON has no word for: an exact amount."""
    return str(value)
