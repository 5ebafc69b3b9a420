"""The options that commands share: the limits of a run, and how it is shown."""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeAlias

from cyclopts import Group, Parameter
from rich.console import Console

from endstop._errors import ConfigError
from endstop.views.live import LiveView
from endstop.views.plain import JsonView, PlainView
from endstop.views.words import Redactor

if TYPE_CHECKING:
    from collections.abc import Generator
    from decimal import Decimal

    from endstop._limits import PlanLimits, Spent
    from endstop.views.base import View

# Option -> the field of `PlanLimits` that it replaces.
_LIMIT_FIELDS = {
    "--max-rounds": "max_model_rounds",
    "--max-calls": "max_model_calls",
    "--max-tool-calls": "max_tool_calls",
    "--max-tokens": "max_tokens",
    "--max-output-tokens": "max_output_tokens",
    "--max-cost": "max_cost",
    "--max-seconds": "max_seconds",
    "--deadline": "deadline",
    "--max-depth": "max_depth",
    "--on-limit": "on_limit",
    "--warn-at": "warn_at",
}

_TOOL_LIMIT = "tool_limits["

# Parsed as a number that may have a fraction, so that 1.9 is refused and not rounded.
_Count: TypeAlias = float | Literal["none"] | None
_Number: TypeAlias = float | Literal["none"] | None


def text_option(help_text: str) -> Parameter:
    """An option whose help says all that there is to know of it."""
    return Parameter(help=help_text, negative=(), show_choices=False, show_default=False)


@Parameter(name="*", group=Group("Limits", help="Each replaces the agent's own; `none` means no limit.", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """The limits that are given on the command line."""

    max_rounds: Annotated[_Count, text_option("Rounds: a request, and the tools that it asks for.")] = None
    max_calls: Annotated[_Count, text_option("Requests sent: rounds, retries, the final answer, children.")] = None
    max_tool_calls: Annotated[_Count, text_option("Tool executions started.")] = None
    tool_limit: Annotated[list[str] | None, text_option("NAME=N: executions of one tool. Can be repeated.")] = None
    max_tokens: Annotated[_Count, text_option("Tokens in and out, as the provider reports them.")] = None
    max_output_tokens: Annotated[_Count, text_option("Tokens out.")] = None
    max_cost: Annotated[_Number, text_option("US dollars.")] = None
    max_seconds: Annotated[_Number, text_option("Seconds of work; waiting for a person is none.")] = None
    deadline: Annotated[str | None, text_option("A time in ISO 8601; without an offset, local time.")] = None
    max_depth: Annotated[_Count, text_option("Levels of delegation.")] = None
    on_limit: Annotated[
        Literal["answer", "stop", "raise"] | None,
        text_option("answer: a last answer from a reserve; stop: the best text at hand; raise: an error."),
    ] = None
    warn_at: Annotated[_Number, text_option("The share of a limit at which to warn, such as 0.8.")] = None

    def applied_to(self, limits: PlanLimits) -> PlanLimits:
        """The limits with those replaced that were given; a limit on one tool leaves those on others alone.

        Raises:
            ConfigError: a value cannot be used; the error names the option.
        """
        given = {option: getattr(self, option[2:].replace("-", "_")) for option in _LIMIT_FIELDS}
        changes: dict[str, Any] = {
            _LIMIT_FIELDS[option]: None if value == "none" else _whole(option, value)
            for option, value in given.items()
            if value is not None
        }
        if isinstance(text := changes.get("deadline"), str):
            changes["deadline"] = _time(text)
        if self.tool_limit:
            changes["tool_limits"] = {**limits.tool_limits, **dict(map(_tool_limit, self.tool_limit))}
        try:
            return replace(limits, **changes)
        except ConfigError as error:
            raise ConfigError(option_of(error.field), error.value, error.remedy) from error


@Parameter(name="*", group=Group("Output", sort_key=2))
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How a run is shown, and where it is kept."""

    json: Annotated[bool, text_option("Write every event as a line of JSON.")] = False
    stream: Annotated[bool, Parameter(help="Show text as it comes, or round by round.", show_default=False)] = True
    save: Annotated[Path | None, text_option("Keep what was done in this file, to go on with it.")] = None
    debug: Annotated[bool, text_option("Show tracebacks.")] = False

    @contextlib.contextmanager
    def opened(self) -> Generator[TextIO]:
        """Where the view writes. With `json`, what anything else prints goes to standard error.

        Raises:
            ConfigError: nothing can be saved where `save` says.
        """
        if self.save is not None and not _can_be_saved(self.save):
            raise ConfigError("--save", str(self.save), "name a file in a folder that can be written to")
        out = sys.stdout
        with contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext():
            yield out

    def view(self, out: TextIO, limits: PlanLimits, spent: Spent) -> View:
        """The view for what `out` is: a terminal, or anything else."""
        redact = Redactor(os.environ)
        if self.json:
            return JsonView(out, stream=self.stream, redact=redact)
        console = Console(file=out)
        if out.isatty() and not console.is_dumb_terminal:
            return LiveView(console, limits, spent, stream=self.stream, redact=redact)
        return PlainView(out, limits, spent, stream=self.stream, redact=redact)


def _can_be_saved(path: Path) -> bool:
    """Whether a file of this name can be written: what is there and is no plain file is never replaced."""
    try:
        part = path.with_name(f"{path.name}.part")
        plain = not path.exists() or path.is_file()
        return plain and not part.is_dir() and os.access(path.absolute().parent, os.W_OK)
    except (OSError, ValueError):  # such as a name that is too long, or no name
        return False


def _whole(option: str, value: Any) -> Any:
    counts = option not in ("--max-cost", "--max-seconds", "--warn-at")
    return int(value) if counts and isinstance(value, float) and value.is_integer() else value


def raised(limit: str, allowed: float | Decimal | None) -> str:
    """An option that allows twice as much of a limit; empty where it is no limit of the plan's."""
    option = option_of(limit)
    if option == "--deadline":
        return "--deadline TIME"
    if not option.startswith("--") or allowed is None:
        return ""
    more = allowed * 2 or 1
    if option == "--tool-limit":
        tool = ast.literal_eval(limit.removeprefix(_TOOL_LIMIT).removesuffix("]"))
        return f"--tool-limit {shlex.quote(f'{tool}={more}')}"
    return f"{option} {more}"


def option_of(field: str) -> str:
    """The option that sets a field of `PlanLimits`; the field itself where there is none."""
    if field.startswith(_TOOL_LIMIT):
        return "--tool-limit"
    return next((option for option, its_field in _LIMIT_FIELDS.items() if its_field == field), field)


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise ConfigError("--deadline", text, "write a time in ISO 8601, such as 2030-01-31T18:00+01:00") from error


def _tool_limit(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise ConfigError("--tool-limit", text, "write NAME=N, such as search=5")
    return name, int(number)
