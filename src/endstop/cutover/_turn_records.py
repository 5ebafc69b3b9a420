"""What is kept of each turn, and what the turns of a surface add up to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Literal, TypeAlias

from endstop._errors import ConfigError
from endstop.cutover.switches import Route, Surface, check_surface

if TYPE_CHECKING:
    from collections.abc import Iterable

    from endstop._limits import Spent

Body: TypeAlias = Literal["kernel", "legacy"]
"""What serves a turn."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn: who was asked to serve it, who served it, and how it ended.

    `route` is what the switch asked for and `switch` its setting (`canary=0.05`). `refusals` are the codes for which
    the kernel could not serve the turn exactly; in a shadow turn, could not have. `rounds` counts model rounds (`None`:
    not known), `duration_ms` is in milliseconds. `error` is the name of the class of the error that the caller got;
    a turn that its caller broke off is `cancelled`. `spent` holds amounts by unit, fractions of money as text.
    `differences` are the codes of what a replay on the kernel did otherwise. `at` is when the turn ended, with its time
    zone.

    Raises:
        ConfigError: the surface has no switch, a number cannot be one, `at` has no time zone, or the body that served
            is not one that the route and the refusals allow.
    """

    surface: Surface
    served_by: Body
    route: Route
    switch: str
    run_id: str
    duration_ms: float
    refusals: tuple[str, ...] = ()
    rounds: int | None = None
    error: str | None = None
    cancelled: bool = False
    spent: Mapping[str, int | float | str] = field(default_factory=dict[str, int | float | str])
    differences: tuple[str, ...] = ()
    agent: str = ""
    thread_id: str | None = None
    at: datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        """Refuse what no turn can have been: a wrong record would stay in the ledger for ever."""
        check_surface(self.surface)
        check_time("at", self.at)
        if not (math.isfinite(self.duration_ms) and self.duration_ms >= 0):
            raise ConfigError("duration_ms", self.duration_ms, "use a number of milliseconds, 0 or more")
        for unit, amount in self.spent.items():
            _check_amount(f"spent[{unit!r}]", amount)
        served = "legacy" if self.route != "kernel" or self.refusals else "kernel"
        if self.served_by != served:
            remedy = f"the {served} body serves where route={self.route!r} and refusals={self.refusals!r}"
            raise ConfigError("served_by", self.served_by, remedy)
        object.__setattr__(self, "spent", dict(self.spent))

    @property
    def fell_back(self) -> bool:
        """Whether the switch asked for the kernel and the kernel refused."""
        return self.route == "kernel" and self.served_by == "legacy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallbacks:
    """What the turns of a surface over a window add up to. Its length is the number of turns that fell back.

    So `not fallbacks(...)` says that nothing fell back, also where nothing ran or what ran failed; whether a migration
    is proven is `is_clean`.

    `turns` are all of the window, `on_kernel` those that the kernel served, `fell_back` those for which the switch
    asked for the kernel, which refused; turns of a switch that is off, or of threads outside the canary, are neither.
    `by_code` counts the turns that fell back by the code of the refusal (a turn with two codes counts under both),
    `errors` the failed turns of the kernel by the class of the error, `differences` by their code the turns in which
    a replay on the kernel did otherwise; each has its most frequent key first. `cancelled` are turns of the kernel that
    their caller broke off. `forgotten` are turns that may have been in the window but are no longer known one by one.
    """

    surface: Surface
    turns: int = 0
    on_kernel: int = 0
    fell_back: int = 0
    cancelled: int = 0
    by_code: Mapping[str, int] = field(default_factory=dict[str, int])
    errors: Mapping[str, int] = field(default_factory=dict[str, int])
    differences: Mapping[str, int] = field(default_factory=dict[str, int])
    forgotten: int = 0

    @classmethod
    def of(cls, surface: Surface, records: Iterable[TurnRecord]) -> Fallbacks:
        """What those of the records that are the surface's add up to."""
        counts: Counter[str] = Counter()
        by_code: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        differences: Counter[str] = Counter()
        for record in records:
            if record.surface != surface:
                continue
            on_kernel = record.served_by == "kernel"
            counts.update(turns=1, on_kernel=int(on_kernel), fell_back=int(record.fell_back))
            counts.update(cancelled=int(on_kernel and record.cancelled))
            differences.update(set(record.differences))
            if record.fell_back:
                by_code.update(set(record.refusals))
            if on_kernel and record.error is not None:
                errors[record.error] += 1
        return cls(
            surface=surface,
            turns=counts["turns"],
            on_kernel=counts["on_kernel"],
            fell_back=counts["fell_back"],
            cancelled=counts["cancelled"],
            by_code=most_first(by_code),
            errors=most_first(errors),
            differences=most_first(differences),
        )

    def __add__(self, other: Fallbacks) -> Fallbacks:
        """The sum of two windows that do not overlap."""
        return Fallbacks(
            surface=self.surface,
            turns=self.turns + other.turns,
            on_kernel=self.on_kernel + other.on_kernel,
            fell_back=self.fell_back + other.fell_back,
            cancelled=self.cancelled + other.cancelled,
            by_code=most_first(Counter(self.by_code) + Counter(other.by_code)),
            errors=most_first(Counter(self.errors) + Counter(other.errors)),
            differences=most_first(Counter(self.differences) + Counter(other.differences)),
            forgotten=self.forgotten + other.forgotten,
        )

    def __len__(self) -> int:
        """How many turns fell back."""
        return self.fell_back

    @property
    def is_clean(self) -> bool:
        """Whether the window proves the move: turns ran on the kernel to their end, and there are no `problems`."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the window is not clean. An empty window proves nothing, and a failure is never clean."""
        found = (
            (self.fell_back, f"{self.fell_back:,} fell back"),
            (self.errors, f"{sum(self.errors.values()):,} failed on the kernel"),
            (self.differences, f"replays differ ({', '.join(self.differences)})"),
            (self.forgotten, f"{self.forgotten:,} may belong to the window but are no longer known one by one"),
            (self.on_kernel <= self.cancelled, "no turn ran on the kernel to its end"),
        )
        return tuple(text for is_so, text in found if is_so)


def spent_amounts(spent: Spent) -> dict[str, int | float | str]:
    """What a run of the kernel spent, as a record holds it: the amounts that are not 0, money as text."""
    amounts = {unit: amount for unit, amount in spent.amounts().items() if amount}
    return {unit: str(amount) if isinstance(amount, Decimal) else amount for unit, amount in amounts.items()}


def check_time(name: str, time: datetime | None) -> None:
    """Check a moment.

    Raises:
        ConfigError: it does not say in which time zone.
    """
    if time is not None and time.utcoffset() is None:
        raise ConfigError(name, time, "use a time with its time zone, as in datetime.now(UTC)")


def most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts, the largest first; equal ones by name."""
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def _check_amount(name: str, amount: object) -> None:
    try:
        is_number = not isinstance(amount, bool) and Decimal(str(amount)).is_finite()
    except InvalidOperation:
        is_number = False
    if not is_number:
        raise ConfigError(name, amount, "use a number, or one as text")
