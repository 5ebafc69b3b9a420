"""`endstop demo research` shows the research assistant at work, what answers it, what bounds it and how it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from endstop.cli import Exit, main
from endstop.demo.research import load_assistant
from tests.demo.processes import PATIENCE_SECONDS, becomes_true, demo_process, read_until, send
from tests.demo.test_main import OFFLINE, Ended
from tests.models.fake_openai import FakeOpenAI, Reply, chunk, events, stream, usage_chunk, whole
from tests.research.browser_fakes import needs_chromium

KEY = "sk-the-key-that-nobody-may-see"

BANNER = "⚠️ This research was cut short by its step budget or loop detection"

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from endstop.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""A command where a package is not installed."""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No endpoint and no key is named, and the cache is an empty folder."""
    for name in [name for name in os.environ if name.startswith(("ENDSTOP_", "OPENAI_", "TAVILY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENDSTOP_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    """An endpoint that the environment names."""
    with FakeOpenAI() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_MODEL", "a-hosted-model")
        yield server


def demo(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """The demo in this process."""
    capsys.readouterr()
    code = main(["demo", "research", *arguments])
    return Ended(code, *capsys.readouterr())


def says(text: str) -> Reply:
    """The answer of a model that writes text."""
    return stream(events([chunk(content=text), chunk(finish="stop"), usage_chunk(30, 8)]))


def test_the_script_is_played_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Every node execution is a line, then the report, then how it ended."""
    ended = demo(capsys, "--scripted")
    assert (ended.code, ended.err) == (Exit.COMPLETED, "")
    lines = ended.out.splitlines()
    assert lines[0] == "Model: none, its answers were written beforehand for a question of their own: as asked"
    assert lines[1] == "Search: the documents that come with it"
    assert lines[2] == "Bounds: at most 3 rewrites and 2 returns to research"
    assert lines[4].startswith("The question: Which is the safe way to wire an endstop")
    steps = [line for line in lines if line.startswith("· ")]
    assert [step.split()[1] for step in steps] == [f"{number}" for number in range(1, 14)]
    assert steps[-1] == "· 13 reviewer: pass"
    assert "\n\nWire the endstops normally closed" in ended.out
    assert lines[-1] == "The reviewer passed it: 13 node executions."


def test_a_step_budget_ends_it_honestly(capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is said before, and the report opens with the banner."""
    ended = demo(capsys, "--scripted", "--max-steps", "7")
    assert "; the first review after 7 node executions ends it\n" in ended.out
    assert f"\n\n{BANNER}" in ended.out
    last = ended.out.splitlines()[-1]
    assert last == "Cut short, and says so (honest ending: step budget exceeded (7/7)): 8 node executions."


def test_the_environment_bounds_it_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the language that it names; an option replaces the number."""
    monkeypatch.setenv("ENDSTOP_ENABLE_STEP_BUDGET", "1")
    monkeypatch.setenv("ENDSTOP_MAX_TOTAL_STEPS", "7")
    monkeypatch.setenv("ENDSTOP_ENABLE_LOOP_DETECT", "1")
    monkeypatch.setenv("ENDSTOP_LANGUAGE", "zh")
    ended = demo(capsys, "--scripted")
    assert "; the first review after 7 node executions ends it; 3 equal actions running end it\n" in ended.out
    assert "诚实收尾：步数预算超限（7/7）" in ended.out
    assert "The reviewer passed it: 13 node executions." in demo(capsys, "--scripted", "--max-steps", "100").out


@needs_chromium
def test_a_script_walks_the_browser_where_there_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The pages that it has read are among the sources."""
    ended = demo(capsys, "--scripted", "--browse")
    assert ended.code == Exit.COMPLETED
    assert re.search(r"· 6 research_team: read .*http://127\.0\.0\.1:\d+/wire-test\.html", ended.out)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["Why?"], "QUESTION"), (["--max-steps=-1"], "--max-steps"), (["--max-steps=1.5"], "--max-steps")],
)
def test_what_cannot_be_done_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], field: str) -> None:
    """By the name of what was asked, before anything runs."""
    ended = demo(capsys, "--scripted", *arguments)
    assert ended.code == Exit.MISUSE
    assert ended.err.startswith(f"endstop: error [config]: {field}")
    assert "· 1" not in ended.out


def test_the_bench_prints_its_table_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Five rows, from real runs; no model is looked for."""
    ended = demo(capsys, "--bench")
    assert ended.code == Exit.COMPLETED
    assert ended.out == f"{load_assistant().bench_table()}\n"
    assert len(ended.out.splitlines()) == 7


def test_without_a_model_the_script_is_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line says why."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    ended = demo(capsys)
    assert ended.code == Exit.COMPLETED
    assert "a question of their own: its weights are not in the cache and could not be had (hub " in ended.out
    assert ended.out.endswith("The reviewer passed it: 13 node executions.\n")


# --- an endpoint that the environment names ---------------------------------------------------------------------------


def test_the_endpoint_of_the_environment_answers(capsys: pytest.CaptureFixture[str], endpoint: FakeOpenAI) -> None:
    """A question of one's own, on the documents; the key is never shown."""
    endpoint.replies += map(says, ["What bounces?", "Contacts do.", "Contacts bounce.", "They do.", f"{KEY}!", "PASS"])
    ended = demo(capsys, "What is bouncing?")
    assert (ended.code, ended.err) == (Exit.COMPLETED, "")
    assert ended.out.startswith("Model: OpenAIModel('a-hosted-model'")
    assert "\nThe question: What is bouncing?\n" in ended.out
    assert "\n· 2 researcher: What bounces? (mechanical-switches.md" in ended.out
    assert "\n\n[OPENAI_API_KEY]!\n\nRead for this:\n- mechanical-switches.md\n" in ended.out
    assert ended.out.endswith("The reviewer passed it: 6 node executions.\n")


@needs_chromium
def test_a_browser_reads_along_where_it_is_asked_for(capsys: pytest.CaptureFixture[str], endpoint: FakeOpenAI) -> None:
    """On the pages that ship with it; what it found is evidence, under the address of its page."""
    texts = ["What bounces?", "Contacts do.", "Contacts bounce.", "Seen on a page.", "They do.", "A draft.", "PASS"]
    endpoint.replies += map(says, texts)
    ended = demo(capsys, "What is bouncing?", "--browse")
    assert (ended.code, ended.err) == (Exit.COMPLETED, "")
    assert re.search(r"\n· 4 research_team: read .*, http://127\.0\.0\.1:\d+/", ended.out)
    assert "Seen in the browser: Seen on a page." in str(endpoint.received[4].body)


def test_a_guard_of_its_own_ends_it_without_a_word(capsys: pytest.CaptureFixture[str], endpoint: FakeOpenAI) -> None:
    """Which is what the step budget and the detector are for; the demo's last line tells it."""
    gather = ["What bounces?", "Contacts do.", "Contacts bounce.", "They do."]
    endpoint.replies += map(says, [*gather, *["A draft.", "REWRITE: clearer."] * 4])
    ended = demo(capsys, "What is bouncing?")
    assert BANNER not in ended.out
    assert ended.out.splitlines()[-1] == (
        "A guard of its own was used up, and the draft went out as it was: 12 node executions."
    )
    endpoint.replies += map(says, [*gather, *["A draft.", "REWRITE: clearer."] * 4])
    ended = demo(capsys, "What is bouncing?", "--detect-loops")
    assert "; a team that repeats itself ends it\n" in ended.out
    assert f"\n\n{BANNER}" in ended.out
    assert ended.out.splitlines()[-1].endswith(": 10 node executions.")


def test_an_endpoint_that_refuses_is_an_error(capsys: pytest.CaptureFixture[str], endpoint: FakeOpenAI) -> None:
    """The run failed, and a line says why."""
    endpoint.replies += [whole({"error": "no such key"}, status=401)]
    ended = demo(capsys, "What is bouncing?")
    assert ended.code == Exit.FAILED
    assert ended.err.startswith("endstop: error [model]: ")


def test_ctrl_c_ends_it_while_researchers_wait_for_their_model(endpoint: FakeOpenAI) -> None:
    """LangGraph would wait for both answers, which never come."""
    silent = stream(events([chunk(content="Hm")], done=False), hold=True)
    endpoint.replies += [says("What bounces?\nWhat does not?"), silent, silent]
    with demo_process("research", "What is bouncing?") as process:
        read_until(process, "· 1 split")
        assert becomes_true(lambda: len(endpoint.received) == 3)
        send(process, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (Exit.INTERRUPTED, "")


# --- where it comes from ----------------------------------------------------------------------------------------------


def test_it_is_loaded_once() -> None:
    """Whoever asks again gets the same package."""
    assert load_assistant() is load_assistant()


@pytest.mark.parametrize(
    ("arguments", "package", "what"),
    [
        (["demo", "research", "--bench"], "langgraph", "the research assistant needs langgraph"),
        (["demo", "--replay"], "httpx", "the demo needs httpx"),
    ],
)
def test_without_a_package_it_says_what_to_install(arguments: list[str], package: str, what: str) -> None:
    """Two lines, and no traceback."""
    command = [sys.executable, "-c", WITHOUT, package, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.MISUSE
    assert done.stderr.splitlines() == [
        f"endstop: error [ImportError]: {what}",
        f"the command needs {package}: pip install 'endstop[all]' brings it",
    ]
