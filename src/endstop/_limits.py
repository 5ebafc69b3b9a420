"""What a run may spend and has spent, as plain values. Counting is `endstop._budget`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast, get_args

from endstop._errors import ConfigError

if TYPE_CHECKING:
    from endstop._messages import Usage

MAX_TOOL_ITERATIONS = 10
"""The kernel's own default for `max_model_rounds`."""

ANSWER_TOKENS = 1024
"""Output tokens held back for the final answer by default: about two pages of text."""

ANSWER_SECONDS_SHARE = 0.25
"""Share of the time limit held back for the final answer where `answer_seconds` is not set."""

ANSWER_SECONDS_MAX = 60.0
"""The most seconds held back for the final answer where `answer_seconds` is not set."""

LOOP = "loop"
"""The name under which a loop is the limit that ends a run."""

OnLimit: TypeAlias = Literal["answer", "stop", "raise"]

Number: TypeAlias = int | Decimal
"""An amount of a unit that is counted: money in `Decimal`, everything else whole."""

TOOL_UNIT = "tool:"
"""How the unit of one tool's calls begins; its name follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A flat price: US dollars per million tokens. Cached input costs as input where it has no price of its own."""

    input_per_million: Decimal
    output_per_million: Decimal
    cached_input_per_million: Decimal | None = None
    source: str = "assumed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_per_million", _money("input_per_million", self.input_per_million))
        object.__setattr__(self, "output_per_million", _money("output_per_million", self.output_per_million))
        if self.cached_input_per_million is not None:
            cached = _money("cached_input_per_million", self.cached_input_per_million)
            object.__setattr__(self, "cached_input_per_million", cached)

    def cost(self, usage: Usage) -> Decimal:
        """US dollars of this usage."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        cached_rate = self.cached_input_per_million
        if cached_rate is None:
            cached_rate = self.input_per_million
        dollars = (usage.input_tokens - cached) * self.input_per_million + cached * cached_rate
        return (dollars + usage.output_tokens * self.output_per_million) / 1_000_000


class Pricing(Protocol):
    """What a model's tokens cost."""

    @property
    def source(self) -> str:
        """The table that the price is from, with its version."""
        ...

    def cost(self, usage: Usage) -> Decimal:
        """US dollars of this usage."""
        ...


class Prices(Protocol):
    """Where prices come from; by default the table of the genai-prices package where it is installed."""

    def price_of(self, model: str) -> Pricing | None:
        """The price of a model by its name, or `None` where it is not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """The limits of one run and of every run below it. `None` is no limit; 0 is legal and means none at all.

    | field | one unit | checked |
    |---|---|---|
    | `max_model_rounds` | one round of an agent's loop: a request and the tool calls it asks for | before the request |
    | `max_model_calls` | one request sent for the run: rounds, retries, the final answer, children | before each |
    | `max_tool_calls`, `tool_limits` | one tool execution started (no unknown or refused call) | before each |
    | `max_tokens`, `max_output_tokens` | tokens as the provider reports them | estimated before, settled after |
    | `max_cost` | US dollars | as tokens, at the price table's rates |
    | `max_seconds` | working time: everything but waiting for a person | continuously |
    | `deadline` | absolute time (aware, kept as UTC), waiting included | continuously |
    | `max_depth` | levels of delegation below the run | before a child starts |

    `on_limit` says how a run ends at a limit. `"answer"`: one last answer without tools, paid from a
    reserve inside the limits (one round and call, its input, `answer_tokens` of output, and
    `answer_seconds`, by default a quarter of the time but at most a minute). `"stop"`: nothing is held
    back and the best text at hand is the result. `"raise"`: `LimitExceeded` with the whole partial result.

    One `limit_warning` event a limit is emitted when `warn_at` of it is used (`None`: never); with
    `warn_model` the model is told too, after the newest tool return. `assume_price` is charged for a
    model without a known price.

    Raises:
        ConfigError: a value is negative, not a number (`bool` included), or not one of the choices.
    """

    max_model_rounds: int | None = MAX_TOOL_ITERATIONS
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    tool_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    max_cost: Decimal | float | None = None
    max_seconds: float | None = None
    deadline: datetime | None = None
    max_depth: int | None = 8
    on_limit: OnLimit = "answer"
    answer_tokens: int = ANSWER_TOKENS
    answer_seconds: float | None = None
    warn_at: float | None = 0.8
    warn_model: bool = False
    assume_price: Price | None = None

    def __post_init__(self) -> None:
        for name in ("max_model_rounds", "max_model_calls", "max_tool_calls", "max_tokens", "max_output_tokens"):
            check_count(name, getattr(self, name), required=False)
        check_count("max_depth", self.max_depth, required=False)
        check_count("answer_tokens", self.answer_tokens)
        object.__setattr__(self, "tool_limits", checked_counts("tool_limits", self.tool_limits, of="tools"))
        if self.max_cost is not None:
            object.__setattr__(self, "max_cost", _money("max_cost", self.max_cost))
        check_seconds("max_seconds", self.max_seconds)
        check_seconds("answer_seconds", self.answer_seconds)
        object.__setattr__(self, "deadline", _deadline(self.deadline))
        if self.on_limit not in get_args(OnLimit):
            raise ConfigError("on_limit", self.on_limit, "use 'answer', 'stop' or 'raise'")
        _check_share("warn_at", self.warn_at)
        _check_type("warn_model", self.warn_model, bool, "use True or False")
        if self.assume_price is not None:
            _check_type("assume_price", self.assume_price, Price, "use a Price(...), or None")

    def bounds(self) -> dict[str, Number]:
        """What is allowed of each unit that is counted and limited, by unit (`model_calls`, `tool:<name>`)."""
        bounds: dict[str, Number | None] = {
            "model_rounds": self.max_model_rounds,
            "model_calls": self.max_model_calls,
            "tool_calls": self.max_tool_calls,
            "tokens": self.max_tokens,
            "output_tokens": self.max_output_tokens,
            "cost": None if self.max_cost is None else Decimal(self.max_cost),
        }
        allowed = {unit: bound for unit, bound in bounds.items() if bound is not None}
        return allowed | {TOOL_UNIT + tool: bound for tool, bound in self.tool_limits.items()}

    @property
    def limits_anything(self) -> bool:
        """Whether any limit is set."""
        timed = self.max_seconds is not None or self.deadline is not None
        return bool(self.bounds()) or timed or self.max_depth is not None

    def seconds_for_answer(self, seconds_left: float) -> float:
        """How many of the seconds that are left are kept for the final answer; 0 where none is asked for."""
        if self.on_limit != "answer":
            return 0.0
        if self.answer_seconds is not None:
            return self.answer_seconds
        return min(max(seconds_left, 0.0) * ANSWER_SECONDS_SHARE, ANSWER_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run has spent, its children included.

    `tools` counts executions by tool name. `unmeasured` counts the requests whose usage the provider
    did not report, so that their tokens are estimates. `underestimated_tokens` is by how much the
    requests together used more than was reserved for them: the largest possible overshoot of a
    token limit. `price_source` names the table that priced the tokens (`None`: nothing was priced).
    """

    model_rounds: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tools: Mapping[str, int] = field(default_factory=dict[str, int])
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    seconds: float = 0.0
    unmeasured: int = 0
    underestimated_tokens: int = 0
    price_source: str | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def amounts(self) -> dict[str, Number]:
        """What is spent of each unit that is counted, by unit; those of single tools (`tool:<name>`) come last."""
        amounts: dict[str, Number] = {
            "model_rounds": self.model_rounds,
            "model_calls": self.model_calls,
            "tool_calls": self.tool_calls,
            "tokens": self.tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
            "unmeasured": self.unmeasured,
            "underestimated_tokens": self.underestimated_tokens,
        }
        return amounts | {TOOL_UNIT + tool: count for tool, count in self.tools.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """A limit that is used up: its name, what was used when it was found, and what is allowed, in its own unit.

    `limit` is the field of `PlanLimits`, with the tool where it is one tool's (`tool_limits['search']`),
    `model_output_cap` where the model's own cap cut the answer, or `loop` (repeats, and those allowed).
    """

    limit: str
    used: int | float | Decimal
    allowed: int | float | Decimal


def checked_limits(limits: object) -> PlanLimits:
    """The limits; callers are not all type-checked.

    Raises:
        ConfigError: they are no `PlanLimits`.
    """
    if not isinstance(limits, PlanLimits):
        raise ConfigError("limits", limits, "use PlanLimits(...)")
    return limits


def check_count(name: str, value: object, *, least: int = 0, required: bool = True) -> None:
    """Check a whole number, `least` or more.

    Raises:
        ConfigError: it is less, not an `int`, a `bool`, or `None` where it is required.
    """
    if value is None and not required:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        remedy = f"use a whole number, {least} or more"
        raise ConfigError(name, value, remedy if required else f"{remedy}, or None for no limit")


def checked_counts(name: str, counts: Mapping[str, int], *, of: str) -> dict[str, int]:
    """A copy of the whole numbers by name.

    Raises:
        ConfigError: it is no mapping, or holds something else; `of` says what the names are of.
    """
    if not isinstance(cast("object", counts), Mapping):  # callers are not all type-checked
        raise ConfigError(name, counts, f"use a mapping of {of} to whole numbers, by their names")
    for key, count in counts.items():
        _check_type(name, key, str, f"use the names of {of} as keys")
        check_count(f"{name}[{key!r}]", count)
    return dict(counts)


def check_seconds(name: str, value: object, *, required: bool = False) -> None:
    """Check a number of seconds, 0 or more.

    Raises:
        ConfigError: it is negative, not finite, not a number, or `None` where it is required.
    """
    if value is None and not required:
        return
    # NaN and the infinities fail the comparison, as do whole numbers that are no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ConfigError(name, value, "use a number of seconds, 0 or more" + ("" if required else ", or None"))


def _check_share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(name, value, "use a share above 0 and up to 1, or None for never")


def _check_type(name: str, value: object, wanted: type, remedy: str) -> None:
    if not isinstance(value, wanted):  # callers are not all type-checked
        raise ConfigError(name, value, remedy)


def _money(name: str, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ConfigError(name, value, "use a number of US dollars (Decimal, int or float), 0 or more")
    # A float is taken for the number that it is written as: 0.1 is ten cents.
    amount = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise ConfigError(name, value, "use a finite number of US dollars, 0 or more")
    return amount


def _deadline(value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigError("deadline", value, "use an aware datetime, such as datetime.now(UTC) + timedelta(minutes=5)")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ConfigError("deadline", value, "use a time within the years 1 to 9999 in UTC") from error
