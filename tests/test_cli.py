"""The command line does what it says, ends as its exit code says, and never shows a traceback that nobody asked for."""

from __future__ import annotations

import fcntl
import importlib.metadata
import io
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from endstop import AgentResult, RunState, ToolReturn
from endstop.cli import Exit, app, main
from tests.loaded import modules_forgotten

AGENTS = '''
import os
import time

import anyio

from endstop import Agent, ModelError, PlanLimits, Price, tool
from endstop.models.scripted import ScriptedModel, Step, call, forever, turn

print("noise of a module")


@tool(read_only=True)
async def search(query: str) -> str:
    """Search."""
    print("noise of a tool")
    return f"All about {query}."


@tool(requires_approval=True)
async def fire(rockets: int) -> str:
    """Fire."""
    return f"fired {rockets}"


@tool(read_only=True)
async def wait() -> str:
    """Wait for very long."""
    await anyio.sleep(600)
    return "done"


@tool
def block() -> str:
    """Block a thread for very long."""
    time.sleep(600)
    return "done"


@tool
async def hang() -> str:
    """Block the whole program for very long, event loop and all."""
    print("hanging", flush=True)
    for _ in range(600):
        time.sleep(1)
    return "done"


def eager(request):
    if request.final:
        return f"A partial answer to {request.messages[0].content}."
    return turn("I look.", calls=[call("search", {"query": f"endstops {len(request.messages)}"})])


def agent(steps, tools=(search,), name="tester", **limits):
    return Agent(ScriptedModel(steps), tools=tools, name=name, limits=PlanLimits(**limits))


done = agent(["Hello."])
endless = agent([forever(eager)], max_model_rounds=3)
raising = agent([forever(eager)], max_model_rounds=3, on_limit="raise")
failing = agent(["x", turn(calls=[call("search", {"query": "a"})]), ModelError("the key sk-very-secret is wrong")][1:])
recovering = agent(["It works again."])
broken = agent([ValueError("a bug")])
firing = agent([turn(calls=[call("fire", {"rockets": 3}, call_id="f")])], tools=[fire])
fired = agent(["All is done."], tools=[fire])
waiting = agent([turn("On it.", calls=[call("wait")])], tools=[wait])
blocked = agent([turn("On it.", calls=[call("block")])], tools=[block])
hung = agent([turn("On it.", calls=[call("hang")])], tools=[hang])
talking = agent([Step(text="word\\n" * 3_000, deltas=("word\\n",) * 3_000, delta_latency_seconds=0.02)])
renamed = agent(["Hello."], name="another")
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with agents in it; what is imported from it is forgotten after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents.py").write_text(AGENTS)
    with modules_forgotten(tmp_path):
        yield tmp_path


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Endstop = Callable[..., Ended]


@pytest.fixture
def endstop(capsys: pytest.CaptureFixture[str]) -> Endstop:
    """The command line, in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return Ended(int(code), out.replace("noise of a module\n", "").replace("noise of a tool\n", ""), err)

    return run


# --- how it ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("run agents.py:done hello", Exit.COMPLETED),
        ("run agents:done hello", Exit.COMPLETED),
        ("run agents.py:endless hello", Exit.TRUNCATED),
        ("run agents.py:endless hello --on-limit stop", Exit.TRUNCATED),
        ("run agents.py:endless hello --max-tool-calls 1", Exit.TRUNCATED),
        ("run agents.py:raising hello", Exit.TRUNCATED),
        ("run agents.py:firing hello", Exit.PAUSED),
        ("run agents.py:failing hello", Exit.FAILED),
        ("run agents.py:broken hello", Exit.FAILED),
        ("run agents.py:done ''", Exit.MISUSE),
        ("run agents.py:done", Exit.MISUSE),
        ("run agents.py:nobody hello", Exit.MISUSE),
        ("run agents.py:done hello --max-rounds -1", Exit.MISUSE),
        ("run agents.py:done hello --max-rounds many", Exit.MISUSE),
        ("run agents.py:done hello --on-limit explode", Exit.MISUSE),
        ("run agents.py:done hello --max-rnds 3", Exit.MISUSE),
        ("run agents.py:done hello --max-cost 1", Exit.MISUSE),
        ("run agents.py:done hello --save missing/run.json", Exit.MISUSE),
        ("run agents.py:done hello --save .", Exit.MISUSE),
        ("resume missing.json agents.py:done", Exit.MISUSE),
        ("resume agents.py agents.py:done", Exit.MISUSE),
        ("rum agents.py:done hello", Exit.MISUSE),
        ("--help", Exit.COMPLETED),
        ("", Exit.COMPLETED),
    ],
)
def test_the_exit_code_says_how_it_ended(arguments: str, code: Exit, endstop: Endstop) -> None:
    """A shell can branch on it; what is wrong is one or two lines, and no traceback."""
    ended = endstop(*shlex.split(arguments))
    assert ended.code == code
    assert "Traceback" not in ended.out + ended.err
    assert ended.err.startswith("endstop: error [") == (code in (Exit.FAILED, Exit.MISUSE) or "raising" in arguments)


def test_a_refusal_names_the_option_and_the_remedy(endstop: Endstop) -> None:
    """What a person typed is what they read."""
    assert endstop("run", "agents.py:done", "hi", "--max-rounds", "-1").err == (
        "endstop: error [config]: --max-rounds=-1 cannot be used: use a whole number, 0 or more, or None for no limit\n"
    )
    misspelt = endstop("run", "agents.py:done", "hi", "--max-rnds", "3").err
    assert "--max-rnds" in misspelt
    assert misspelt.endswith("see `endstop run --help`\n")
    assert endstop("rum").err.endswith("see `endstop --help`\n")


def test_an_error_of_somebody_else_is_named_and_can_be_traced(endstop: Endstop) -> None:
    """With --debug the traceback leads to the line."""
    assert endstop("run", "agents.py:broken", "hi").err == "endstop: error [ValueError]: a bug\n--debug shows where\n"
    traced = endstop("run", "agents.py:broken", "hi", "--debug").err
    assert traced.startswith("Traceback")
    assert "ValueError: a bug" in traced


def test_a_command_whose_extra_is_not_installed_says_so(
    endstop: Endstop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported when it is used, so that every other command works without."""
    monkeypatch.syspath_prepend(folder)
    (folder / "extra_command.py").write_text("import a_package_of_an_extra")
    app.command("extra_command:run", name="extra")
    try:
        ended = endstop("extra")
    finally:
        del app["extra"]
    assert ended.code == Exit.MISUSE
    assert ended.err.endswith("the command needs a_package_of_an_extra: pip install 'endstop[all]' brings it\n")


def test_a_secret_of_the_environment_is_not_printed(endstop: Endstop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in an error of the provider, and not in its traceback."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    ended = endstop("run", "agents.py:failing", "hi", "--debug")
    assert "the key [OPENAI_API_KEY] is wrong" in ended.err
    assert "sk-very-secret" not in ended.out + ended.err


def test_ctrl_c_while_an_agent_is_loaded_ends_quietly(endstop: Endstop, folder: Path) -> None:
    """There is no run to end in order yet."""
    (folder / "slow.py").write_text("raise KeyboardInterrupt")
    assert endstop("run", "slow.py:agent", "hi") == Ended(Exit.INTERRUPTED, "", "")


# --- limits and prompts -------------------------------------------------------------------------------------------


def test_a_limit_that_is_given_replaces_the_agents_own(endstop: Endstop) -> None:
    """And is what the ending reports."""
    ended = endstop("run", "agents.py:endless", "hi", "--max-rounds", "2", "--tool-limit", "search=5")
    assert "· round 2 of 2: the final answer, without tools\n" in ended.out
    assert "1/5 search calls" in ended.out
    assert ended.code == Exit.TRUNCATED


def test_a_limit_on_a_tool_that_is_not_there_is_noted(endstop: Endstop) -> None:
    """It is no error, because a delegated agent may have the tool; but it may be a slip."""
    ended = endstop("run", "agents.py:done", "hi", "--tool-limit", "serach=5")
    assert ended.err.startswith("note: 'tester' itself has no tool 'serach'")
    assert ended.code == Exit.COMPLETED


def test_a_dash_reads_the_prompt_from_standard_input(endstop: Endstop, monkeypatch: pytest.MonkeyPatch) -> None:
    """For prompts of several lines, or from another program."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("a question from elsewhere"))
    assert "A partial answer to a question from elsewhere." in endstop("run", "agents.py:endless", "-").out


def test_a_prompt_may_begin_with_dashes_after_two_dashes(endstop: Endstop) -> None:
    """As everywhere on the command line."""
    assert "A partial answer to --help." in endstop("run", "agents.py:endless", "--", "--help").out


# --- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", ["--stream", "--no-stream"])
def test_json_is_all_that_standard_output_has(streaming: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What modules and tools print goes to standard error; the last line has the result."""
    assert main(["run", "agents.py:endless", "hi", "--json", streaming]) == Exit.TRUNCATED
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["kind"] for event in events if "noise" in json.dumps(event)] == []
    assert ("text_delta" in {event["kind"] for event in events}) == (streaming == "--stream")
    assert events[-1]["kind"] == "done"
    assert events[-1]["result"]["text"] == "A partial answer to hi."
    assert "noise of a module\nnoise of a tool\n" in err


def test_json_ends_with_the_error_of_a_run_that_failed(endstop: Endstop) -> None:
    """A program reads its code, a person reads standard error."""
    ended = endstop("run", "agents.py:failing", "hi", "--json")
    last = json.loads(ended.out.splitlines()[-1])
    assert (last["kind"], last["code"]) == ("error", "model")
    assert ended.err.splitlines()[-2] == "endstop: error [model]: the key sk-very-secret is wrong"


# --- saving and going on ------------------------------------------------------------------------------------------


def advice(ended: Ended) -> list[str]:
    """The arguments that the command itself advised to go on with."""
    line = next(line for line in ended.err.splitlines() if line.startswith("to go on: endstop "))
    return shlex.split(line.removeprefix("to go on: endstop "))


@pytest.mark.parametrize("agent", ["endless", "raising"])
def test_a_truncated_run_goes_on_as_advised(agent: str, endstop: Endstop, folder: Path) -> None:
    """The advice works as it stands: nothing is bought twice, and the limit is another one then."""
    first = endstop("run", f"agents.py:{agent}", "hi", "--save", "my run.json")
    assert advice(first) == ["resume", "my run.json", f"agents.py:{agent}", "--max-rounds", "6"]
    second = endstop(*advice(first), "--save", "my run.json")
    assert "· tester goes on with scripted" in second.out
    assert "· truncated: 6/6 rounds" in second.out
    assert AgentResult.from_json((folder / "my run.json").read_bytes()).spent.model_rounds == 6


def test_a_run_goes_on_only_with_a_higher_limit(endstop: Endstop) -> None:
    """The refusal names the option."""
    endstop("run", "agents.py:endless", "hi", "--save", "run.json")
    refused = endstop("resume", "run.json", "agents.py:endless")
    assert refused.code == Exit.MISUSE
    assert refused.err.startswith("endstop: error [resume]: max_model_rounds ")
    assert refused.err.endswith("give a higher limit: --max-rounds\n")


def test_a_failed_run_goes_on_where_it_failed(endstop: Endstop, folder: Path) -> None:
    """Its state is saved; with the fault mended the run completes and has all that was done."""
    first = endstop("run", "agents.py:failing", "hi", "--save", "run.json")
    assert first.err.splitlines()[1] == "to go on: endstop resume run.json agents.py:failing"
    assert RunState.from_json((folder / "run.json").read_bytes()).spent.tool_calls == 1
    second = endstop("resume", "run.json", "agents.py:recovering")
    assert second.code == Exit.COMPLETED
    assert "It works again." in second.out
    assert "1 tool call" in second.out.splitlines()[-1]
    assert second.err == ""


def test_a_completed_run_does_not_go_on(endstop: Endstop) -> None:
    """There is nothing to do, and no advice was given."""
    first = endstop("run", "agents.py:done", "hi", "--save", "run.json")
    assert first.err == ""
    assert endstop("resume", "run.json", "agents.py:done").code == Exit.MISUSE


def test_without_a_file_there_is_advice_for_the_next_time(endstop: Endstop) -> None:
    """A run that was not saved is gone."""
    assert endstop("run", "agents.py:endless", "hi").err == "to be able to go on with such a run, give --save FILE\n"


def test_a_run_of_another_agent_is_noted(endstop: Endstop) -> None:
    """It may have been renamed, or the wrong one was named."""
    endstop("run", "agents.py:endless", "hi", "--save", "run.json")
    ended = endstop("resume", "run.json", "agents.py:renamed", "--max-rounds", "9")
    assert ended.err == "note: the agent 'tester' began this run; 'another' goes on with it\n"
    assert ended.code == Exit.COMPLETED


@pytest.mark.parametrize(
    ("said", "came"),
    [
        ("approve", "fired 3"),
        ('{"type": "edit", "arguments": {"rockets": 1}}', "fired 1"),
        ('"reject"', "error"),
    ],
)
def test_a_pause_is_answered(said: str, came: str, endstop: Endstop, folder: Path) -> None:
    """By the id that the run told, with JSON; to an approval one word will do."""
    first = endstop("run", "agents.py:firing", "hi", "--save", "run.json")
    command, file, _, option, answer = advice(first)
    assert (command, option) == ("resume", "--answer")
    pause_id = answer.removesuffix("=JSON")
    assert f"[{pause_id}]" in first.out
    second = endstop(command, file, "agents.py:fired", option, f"{pause_id}={said}", "--save", "run.json")
    assert second.code == Exit.COMPLETED
    returned = AgentResult.from_json((folder / "run.json").read_bytes()).messages[2]
    assert isinstance(returned, ToolReturn)
    assert came in f"{returned.status}: {returned.content}"


def test_an_answer_names_its_pause(endstop: Endstop) -> None:
    """Text without an id answers nothing, and a wrong id is refused."""
    endstop("run", "agents.py:firing", "hi", "--save", "run.json")
    assert (
        "--answer='approve' cannot be used: write ID=JSON"
        in endstop("resume", "run.json", "agents.py:fired", "--answer", "approve").err
    )
    refused = endstop("resume", "run.json", "agents.py:fired", "--answer", "no-such-pause=yes")
    assert refused.err.startswith("endstop: error [resume]: the pause 'no-such-pause' is not one of this run")


def test_a_file_that_is_no_run_is_named(endstop: Endstop, folder: Path) -> None:
    """Whether it is missing, no JSON, or of another format."""
    (folder / "messages.json").write_text('{"format": "endstop/messages", "version": 1, "value": []}')
    for file in ("missing.json", "agents.py", "messages.json"):
        assert f"FILE={file!r}" in endstop("resume", file, "agents.py:done").err


class Gone(io.StringIO):
    """Standard output whose reader has gone away; it stands for the file descriptor of a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)

    def fileno(self) -> int:
        return self.descriptor

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_nothing_is_written_to_a_reader_that_went_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter still writes when it ends goes nowhere."""
    gone = Gone(folder / "out")
    monkeypatch.setattr(sys, "stdout", gone)
    (folder / "quiet.py").write_text(AGENTS.replace("print(", "str("))
    assert main(["run", "quiet.py:done", "hi", "--save", "run.json"]) == Exit.READER_GONE
    os.write(gone.descriptor, b"late")
    os.close(gone.descriptor)
    assert (folder / "out").read_bytes() == b""
    assert (folder / "run.json").is_file()


def test_loops_scores_the_detector_on_a_file(endstop: Endstop, folder: Path) -> None:
    """One line a detector; a file that cannot be read, or a line that does not fit, is named."""
    call = {"kind": "tool_call", "node": "a", "name": "f", "args": {"x": 1}}
    steps = [step for at in range(8) for step in (call, {"kind": "tool_result", "of": 2 * at, "text": "same"})]
    trajectory = {"id": "1", "source": "made up", "outcome": "fail", "steps": steps}
    labelled = trajectory | {"label": {"loop": True, "start": 2, "kind": "exact"}}
    (folder / "loops.jsonl").write_text(f"{json.dumps(labelled)}\n")
    ended = endstop("loops", "loops.jsonl")
    assert ended.code == Exit.COMPLETED
    assert re.search(r"(?m)^\| endstop +\| 1\.000 \(1/1\)", ended.out)
    assert "FILE='missing' cannot be used: name a file that can be read" in endstop("loops", "missing").err
    (folder / "wrong.jsonl").write_text("{}\n")
    assert endstop("loops", "wrong.jsonl").err.startswith("endstop: error [loop_data]: wrong.jsonl, line 1")


# --- help ---------------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_package(endstop: Endstop) -> None:
    """Not that of the parser."""
    assert endstop("--version").out == f"endstop {importlib.metadata.version('endstop')}\n"


COMMANDS = [
    (f"{above} {name}", below[name]) for above, below in (("", app), ("cutover", app["cutover"])) for name in below
]


@pytest.mark.parametrize("name", [name for name, command in COMMANDS if "-" not in name and command.default_command])
def test_every_option_is_explained(name: str, endstop: Endstop, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--help` has a text for each, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    text = endstop(*name.split(), "--help").out
    options = re.findall(r"(?m)^│ (?:\* +)?(--[\w-]+|[A-Z]+)(?: --[\w-]+)? +(.*)│$", text)
    assert options
    assert [option for option, help_text in options if not help_text.strip()] == []


def test_the_command_is_installed() -> None:
    """As `endstop`."""
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="endstop")
    assert script.load() is main


# --- in a process of its own --------------------------------------------------------------------------------------

# Whoever runs the tests may have been started with Ctrl-C ignored, which a child inherits.
LAUNCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from endstop.cli import main
sys.exit(main())
"""

PATIENCE_SECONDS = 60
"""How long a slow machine may take for what takes a second; nothing here waits for it to pass."""


@contextmanager
def child(*arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own, which does not outlive the test."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, "-c", LAUNCH, *arguments]
    with subprocess.Popen(command, text=True, encoding="utf-8", **streams) as process:
        watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def read_until(process: subprocess.Popen[str], line: str) -> None:
    """Reads what it prints up to a line."""
    assert process.stdout is not None
    for read in process.stdout:
        if read.strip() == line:
            return
    raise AssertionError(f"it ended without printing {line!r}")


@pytest.mark.parametrize("agent", ["waiting", "blocked"])
def test_ctrl_c_ends_a_run_in_order(agent: str, folder: Path) -> None:
    """The partial result is shown and saved, also where a tool does not give its thread back."""
    with child("run", f"agents.py:{agent}", "hi", "--save", "run.json") as process:
        read_until(process, f"· {'wait' if agent == 'waiting' else 'block'}()")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == Exit.INTERRUPTED
    assert "[CANCELLED: the run was cancelled; this is the last text of an unfinished run]\n" in out
    assert err.splitlines() == [
        "ending the run in order; Ctrl-C again ends it at once",
        f"to go on: endstop resume run.json agents.py:{agent}",
    ]
    assert AgentResult.from_json((folder / "run.json").read_bytes()).stop_reason == "cancelled"


def test_a_second_ctrl_c_ends_the_program_at_once() -> None:
    """Even where a tool holds up everything, so that nothing can be done in order."""
    with child("run", "agents.py:hung", "hi") as process:
        read_until(process, "hanging")
        # A signal that comes while another is being handled may merge with it, so it is sent until it has worked.
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in err


def test_a_tool_that_never_returns_does_not_hold_up_the_end() -> None:
    """A time limit ends the program too, not only the run."""
    with child("run", "agents.py:blocked", "hi", "--max-seconds", "0.5", "--on-limit", "stop") as process:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == Exit.TRUNCATED
    assert "[TRUNCATED: max_seconds " in out


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_goes_away_ends_the_run(options: tuple[str, ...], folder: Path) -> None:
    """As `| head` does: without a traceback, and with what was done saved."""
    with child("run", "agents.py:talking", "hi", "--save", "run.json", *options) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(timeout=PATIENCE_SECONDS) == Exit.READER_GONE
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert AgentResult.from_json((folder / "run.json").read_bytes()).stop_reason == "cancelled"


def test_what_an_encoding_lacks_is_shown_as_an_escape() -> None:
    """A run does not fail because its output goes to a place without Unicode."""
    with child("run", "agents.py:endless", "—", env={**os.environ, "PYTHONIOENCODING": "ascii"}) as process:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == Exit.TRUNCATED
    assert "A partial answer to \\u2014." in out


def on_a_terminal(columns: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and everything that a terminal of this width was sent."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    unset = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    env = {**unset, "TERM": "xterm-256color", **environment}
    received = b""
    with child(*arguments, stdin=terminal, stdout=terminal, stderr=terminal, env=env) as process:
        os.close(terminal)
        while True:
            try:
                piece = os.read(controller, 4096)
            except OSError:  # how Linux tells that nobody has the terminal open any more
                break
            if not piece:
                break
            received += piece
        code = process.wait(timeout=PATIENCE_SECONDS)
    os.close(controller)
    return code, received.decode()


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_gets_the_live_view(columns: int) -> None:
    """With gauges in colour while it runs, and the banner at the end."""
    code, sent = on_a_terminal(columns, "run", "agents.py:endless", "hi")
    assert code == Exit.TRUNCATED
    assert "rounds " in sent
    assert "█" in sent
    assert re.search(r"\x1b\[[\d;]*3[1-6]m", sent)
    text = " ".join(re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", sent).split())
    assert "✓ search(" in text
    assert "A partial answer to hi. " in text
    assert "[TRUNCATED: max_model_rounds is used up (3 of 3); this is a partial answer from what was found" in text
    assert text.endswith("to be able to go on with such a run, give --save FILE")


def test_a_terminal_without_color_gets_none() -> None:
    """NO_COLOR is honoured from the environment."""
    _, sent = on_a_terminal(80, "run", "agents.py:endless", "hi", NO_COLOR="1")
    assert "█" in sent
    assert not re.search(r"\x1b\[[\d;]*3[1-6]m", sent)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    """Such as the one of an editor."""
    _, sent = on_a_terminal(80, "run", "agents.py:done", "hi", TERM="dumb")
    assert "\x1b" not in sent
    assert "· completed: 1/10 rounds" in sent
