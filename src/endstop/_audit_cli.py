"""The command that says what a LangGraph graph can do under its limits."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from endstop._errors import ConfigError
from endstop._options import text_option
from endstop._specs import Sought, load
from endstop.langgraph._audits import SEVERITIES, Audit
from endstop.langgraph._compat import is_builder, is_graph
from endstop.langgraph._picture import render_svg
from endstop.langgraph.audit import EntryPoint, audit

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from endstop.langgraph._compat import AnyPregel


@Parameter(name="*", group=Group("The run", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the graph is run, and what its own code bounds."""

    # Parsed as a number that may have a fraction, so that 1.9 is refused and not rounded.
    recursion_limit: Annotated[float | None, text_option("The limit that runs are given in their config.")] = None
    entry_point: Annotated[
        EntryPoint, Parameter(help="How runs are started. Without a limit it decides which one holds.")
    ] = "invoke"
    cap: Annotated[
        list[str] | None,
        text_option("NODE=N or SOURCE->TARGET=N: how often the graph's own code lets it happen. Can be repeated."),
    ] = None
    fan_out: Annotated[
        list[str] | None, text_option("NODE=N: the most tasks of a node that run at once. Can be repeated.")
    ] = None
    model_node: Annotated[str | None, text_option("The node that calls the model, where that cannot be seen.")] = None

    def audit(self, graph: object, spec: str) -> Audit:
        """What is found in the graph that SPEC named.

        Raises:
            ConfigError: the graph or a value cannot be used; the error names the option.
        """
        try:
            return audit(
                graph,
                recursion_limit=_whole("--recursion-limit", self.recursion_limit),
                entry_point=self.entry_point,
                caps=dict(_counted("--cap", given) for given in self.cap or ()),
                fan_out=dict(_counted("--fan-out", given) for given in self.fan_out or ()),
                model=self.model_node,
            )
        except ConfigError as error:
            value = spec if error.field == "graph" else error.value
            raise ConfigError(_option_of(error.field), value, error.remedy) from error


@Parameter(name="*", group=Group("Output", sort_key=2))
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """How the audit is shown, and when it fails."""

    json: Annotated[bool, text_option("Write the audit as one JSON document.")] = False
    svg: Annotated[Path | None, text_option("Draw the graph, its cycles and its limit into this file.")] = None
    fail_on: Annotated[
        Literal["info", "warning", "error", "never"],
        Parameter(help="The least severity of a finding for exit code 1."),
    ] = "error"
    debug: Annotated[bool, text_option("Show tracebacks.")] = False

    def fails(self, found: Audit) -> bool:
        """Whether a finding is as grave as was asked for."""
        if self.fail_on == "never":
            return False
        grave = SEVERITIES[SEVERITIES.index(self.fail_on) :]
        return any(finding.severity in grave for finding in found.findings)


def audit_command(
    spec: Annotated[
        str, Parameter(help="The graph: `package.module:name`, `file.py:name`, or `folder:name` of a package's folder.")
    ],
    /,
    *,
    run: RunOptions | None = None,
    output: ReportOptions | None = None,
) -> int:
    """Say what a LangGraph graph can do under its limits, without running it.

    The exit code is 0 where nothing is found that is as grave as `--fail-on`, 1 where something is, and 2 where the
    graph cannot be read.
    """
    run, output = run or RunOptions(), output or ReportOptions()
    # What the graph's module prints when it is loaded is no part of the report.
    with contextlib.redirect_stdout(sys.stderr):
        found = run.audit(load(spec, _GRAPH), spec)
    if output.svg is not None:
        _write(output.svg, render_svg(found))
    sys.stdout.write(f"{found.to_json() if output.json else found}\n")
    return 1 if output.fails(found) else 0


def _is_graph(found: object) -> TypeIs[AnyPregel]:
    # One that is not compiled is taken too, so that the audit can say what it lacks.
    return is_graph(found) or is_builder(found)


_GRAPH = Sought(article="a", noun="graph", kind="a compiled LangGraph graph", is_one=_is_graph)

_OPTIONS = {"graph": "SPEC", "caps": "--cap", "fan_out": "--fan-out", "model": "--model-node"}


def _option_of(field: str) -> str:
    """The option that a parameter of `audit` is given by; an option's own name stays as it is."""
    name = field.partition("[")[0]
    return _OPTIONS.get(name, f"--{name.replace('_', '-').removeprefix('--')}")


def _whole(option: str, number: float | None) -> int | None:
    if number is not None and not number.is_integer():
        raise ConfigError(option, number, "use a whole number, 1 or more")
    return None if number is None else int(number)


def _counted(option: str, text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isascii() or not number.isdigit():
        raise ConfigError(option, text, "write NAME=N, such as writer=3")
    return name, int(number)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--svg", str(file), "name a file in a folder that can be written to") from error
