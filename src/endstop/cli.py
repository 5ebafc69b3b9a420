"""The command line. Each command parses, calls one function, and prints; docs/cli.md is its manual."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import json
import os
import shlex
import sys
import threading
import traceback
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import App, CycloptsError, Parameter
from cyclopts.help import DefaultFormatter

from endstop._errors import ConfigError, EndstopError, LimitExceeded, ResumeError, RunError, StateError, UsageError
from endstop._limits import PlanLimits, Spent
from endstop._options import LimitOptions, OutputOptions, option_of, raised, text_option
from endstop._results import AgentResult
from endstop._specs import load_agent
from endstop._state import RunState
from endstop._tools import toolbox
from endstop.demo.app import app as demos
from endstop.testing.loops import render_table, score_file
from endstop.views.follow import follow
from endstop.views.words import Redactor, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from endstop._agent import Agent
    from endstop._messages import JsonValue
    from endstop._stream import RunStream
    from endstop.views.base import View


class Exit(IntEnum):
    """The exit codes, by how a command ended."""

    COMPLETED = 0
    FAILED = 1
    MISUSE = 2
    TRUNCATED = 3
    PAUSED = 4
    INTERRUPTED = 130
    READER_GONE = 141


_LAST_SECONDS = 1.0
"""How long the threads of tools may take to end when all else is done; those that are idle take no time."""

_EXITS = {
    "completed": Exit.COMPLETED,
    "tool_limit": Exit.TRUNCATED,
    "budget": Exit.TRUNCATED,
    "loop": Exit.TRUNCATED,
    "paused": Exit.PAUSED,
    "cancelled": Exit.INTERRUPTED,
}

# The parser takes a lone dash for an option. No argument can hold this character, so it stands for one until then.
_STDIN = "\0"


def _help() -> DefaultFormatter:
    """Help that says what a value is in words; newer parsers would add the names of Python types."""
    formatter = DefaultFormatter()
    with contextlib.suppress(AttributeError):
        formatter.show_metavar = False
    return formatter


def _version() -> str:
    return f"endstop {importlib.metadata.version('endstop')}"


app = App(
    name="endstop",
    help="endstop bounds LLM agents: every run ends, inside its limits, honestly.",
    version=_version,
    version_flags=("--version",),
    help_formatter=_help(),
    suppress_keyboard_interrupt=False,
)
"""The command line. A command that stands in another module is added by its place, and imported when it is used:
`app.command("package.module:function", name="...")`."""

app.command(demos)
app.command(
    "endstop._audit_cli:audit_command",
    name="audit",
    help="Say what a LangGraph graph can do under its limits, without running it.",
)
cutover = App(name="cutover", help="Move the callers of a LangGraph agent to the kernel, one turn at a time.")
cutover.command(
    "endstop._cutover_cli:check",
    name="check",
    help="Say whether the kernel would serve an agent's turns, and what is in the way.",
)
cutover.command(
    "endstop._cutover_cli:replay", name="replay", help="Run recorded turns again on the kernel, and say what differs."
)
cutover.command("endstop._cutover_cli:report", name="report", help="Say what ran where, what fell back and why.")
app.command(cutover)
app.command(
    "endstop.testing.commands:conformance", name="conformance", help="Check whether an agent loop keeps its limits."
)


@app.command
def run(
    spec: Annotated[str, Parameter(help="The agent: `package.module:name` or `file.py:name`.")],
    prompt: Annotated[str, Parameter(help="What it is to do; `-` reads it from standard input.")],
    /,
    *,
    limits: LimitOptions | None = None,
    output: OutputOptions | None = None,
) -> int:
    """Run an agent inside its limits.

    The exit code says how it ended: 0 completed, 3 cut short by a limit, 4 waiting for a person, 1 failed,
    2 not started. Ctrl-C ends it in order (130), a second one at once.
    """
    output = output or OutputOptions()
    with output.opened() as out:
        agent = load_agent(spec)
        allowed = (limits or LimitOptions()).applied_to(agent.limits)
        _note_unknown_tools(agent, allowed)
        text = sys.stdin.read() if prompt == _STDIN else prompt
        start = functools.partial(agent.stream, text, limits=allowed)
        return _perform(start, output.view(out, allowed, Spent()), output.save, spec)


@app.command
def resume(
    file: Annotated[Path, Parameter(help="What `--save` wrote.")],
    spec: Annotated[str, Parameter(help="The agent: `package.module:name` or `file.py:name`.")],
    /,
    *,
    answer: Annotated[list[str] | None, text_option("ID=JSON: what is said to a pause. Can be repeated.")] = None,
    limits: LimitOptions | None = None,
    output: OutputOptions | None = None,
) -> int:
    """Go on with a saved run that a limit, a pause, a failure or Ctrl-C ended.

    What was spent stays spent, and what was done is not done again. After a limit, give a higher one.
    The exit code is as for `run`.
    """
    output = output or OutputOptions()
    with output.opened() as out:
        agent = load_agent(spec)
        state = _load_state(file)
        if state.agent != agent.name:
            _say(f"note: the agent {state.agent!r} began this run; {agent.name!r} goes on with it")
        allowed = (limits or LimitOptions()).applied_to(state.limits)
        answers = dict(_answer(given, state) for given in answer or ())
        start = functools.partial(agent.resume_stream, state, limits=allowed, answers=answers)
        return _perform(start, output.view(out, allowed, state.spent), output.save, spec)


@app.command
def loops(
    file: Annotated[Path, Parameter(help="Trajectories, one a line, as `endstop.testing.loops` describes them.")], /
) -> int:
    """Score the loop detector on labelled trajectories, beside rules that agents use today."""
    _check_readable(file)
    for line in render_table(score_file(file)):
        sys.stdout.write(f"{line}\n")
    return Exit.COMPLETED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code, whatever happens."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    tokens = [_STDIN if token == "-" else token for token in given]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks is shown as an escape, and stops nothing
            stream.reconfigure(errors="backslashreplace")
    try:
        returned = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        code = returned if isinstance(returned, int) else Exit.COMPLETED
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and must find somebody who reads.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.READER_GONE
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except Exception as error:
        if "--debug" in given:
            _say("".join(traceback.format_exception(error)).rstrip())
        code = _complain(error)
    _leave_stuck_threads(code)
    return code


def _perform(start: Callable[[], RunStream[object]], view: View, save: Path | None, spec: str) -> int:
    """Follow a run to its end, say how to go on with it, and return the exit code."""

    def on_interrupt() -> None:
        _say("ending the run in order; Ctrl-C again ends it at once")

    try:
        result = anyio.run(functools.partial(follow, start, view, save=save, on_interrupt=on_interrupt))
    except RunError as error:
        kept = error.result if isinstance(error, LimitExceeded) else error.state
        error.add_note(_how_to_go_on(kept, save, spec))
        raise
    _say(_how_to_go_on(result, save, spec))
    return _EXITS[result.stop_reason]


def _how_to_go_on(kept: AgentResult[object] | RunState | None, save: Path | None, spec: str) -> str:
    if kept is None or (isinstance(kept, AgentResult) and kept.ending is None):
        return ""
    if save is None:
        return "to be able to go on with such a run, give --save FILE"
    more = ""
    if isinstance(kept, AgentResult):
        if kept.pauses:
            more = " ".join(f"--answer {shlex.quote(f'{pause.pause_id}=JSON')}" for pause in kept.pauses)
        elif kept.ending is not None and kept.ending.limit is not None:
            more = raised(kept.ending.limit, kept.ending.allowed)
    return f"to go on: endstop resume {shlex.quote(str(save))} {shlex.quote(spec)} {more}".rstrip()


def _note_unknown_tools(agent: Agent[object], limits: PlanLimits) -> None:
    for name in limits.tool_limits.keys() - toolbox(agent.tools).keys():
        _say(f"note: {agent.name!r} itself has no tool {name!r}; the limit on it is for the agents that it asks")


def _answer(text: str, state: RunState) -> tuple[str, JsonValue]:
    """A pause's id and its answer: JSON, or else plain text; to an approval `approve` and `reject` will do."""
    pause_id, separator, said = text.partition("=")
    if not separator:
        raise ConfigError("--answer", text, "write ID=JSON")
    try:
        value: JsonValue = json.loads(said)
    except ValueError:
        value = said
    asks_approval = any(pause.pause_id == pause_id and pause.kind == "approval" for pause in state.pauses)
    return pause_id, {"type": value} if asks_approval and isinstance(value, str) else value


def _check_readable(file: Path) -> None:
    if not file.is_file() or not os.access(file, os.R_OK):
        raise ConfigError("FILE", str(file), "name a file that can be read")


def _load_state(file: Path) -> RunState:
    """The state in a file that `--save` wrote.

    Raises:
        ConfigError: the file cannot be read.
        StateError: it is neither a result nor a state that can be read.
    """
    _check_readable(file)
    document = file.read_bytes()
    is_state = b'"endstop/run-state"' in document[:100]
    try:
        return RunState.from_json(document) if is_state else AgentResult.from_json(document, object).state
    except StateError as error:
        raise StateError(f"FILE={str(file)!r}: {error}", field=error.field) from error


def _complain(error: Exception) -> int:
    """Say what is wrong, in a line that a program can tell apart, and return the exit code for it."""
    code = "usage" if isinstance(error, CycloptsError) else getattr(error, "code", type(error).__name__)
    _say(f"endstop: error [{code}]: {error}")
    for note in getattr(error, "__notes__", ()):
        _say(note)
    match error:
        case CycloptsError():
            _say(f"see `{' '.join(['endstop', *(error.command_chain or ())])} --help`")
            return Exit.MISUSE
        case ResumeError(limit=str(limit)):
            _say(f"give a higher limit: {option_of(limit)}")
            return Exit.MISUSE
        case UsageError():
            return Exit.MISUSE
        case LimitExceeded():
            return Exit.TRUNCATED
        case ImportError(__cause__=ModuleNotFoundError(name=str(package))):
            _say(f"the command needs {package}: pip install 'endstop[all]' brings it")
            return Exit.MISUSE
        case RunError():
            return Exit.FAILED
        case EndstopError():
            return Exit.FAILED
        case _:
            _say("--debug shows where")
            return Exit.FAILED


def _say(text: str) -> None:
    if text:
        sys.stderr.write(f"{printable(Redactor(os.environ)(text))}\n")
        sys.stderr.flush()


def _leave_stuck_threads(code: int) -> None:
    """End at once where a tool that was cut off is still in its thread; Python would wait until it returns."""
    threads = [thread for thread in threading.enumerate() if thread.name == "AnyIO worker thread"]
    if threads:  # pragma: no cover - where one is stuck the process ends here, and its measurements with it
        for thread in threads:
            thread.join(timeout=_LAST_SECONDS / len(threads))
        if any(thread.is_alive() for thread in threads):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
