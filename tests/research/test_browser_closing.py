"""The browser agent leaves no Chromium behind, and says what is missing where it cannot start one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from endstop import ConfigError, ModelError, ModelRequest, ModelTurn
from endstop.models.scripted import ScriptedModel, Step
from examples.research_assistant.browser import BrowserAgent
from examples.research_assistant.browser_site import serve_pages
from tests.research.browser_fakes import act, needs_chromium, reader

ROOT = Path(__file__).resolve().parent.parent.parent

PATIENCE_SECONDS = 60.0
"""How long a slow machine may take for what takes a second; nothing waits for it to pass."""

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="processes are looked up in /proc")


def processes_below(pid: int) -> set[str]:
    """The ids of a process's children, and of theirs; those that have ended and are not yet reaped are none."""
    children: dict[str, set[str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            children.setdefault(parent, set()).add(stat.parent.name)
    below: set[str] = set()
    ahead = [str(pid)]
    while ahead:
        new = children.get(ahead.pop(), set())
        below |= new
        ahead += new
    return below


def is_running(pid: str) -> bool:
    """Whether a process is there that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Whether it does within a time that is long for any machine."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.fixture(name="children")
def children_before() -> set[str]:
    """The processes below this one before the test."""
    return processes_below(os.getpid())


class Waiting:
    """A question whose model does not come to an answer, once Chromium runs for it."""

    def __init__(self, address: str) -> None:
        self.reached = anyio.Event()
        self._agent = BrowserAgent(ScriptedModel([self._step]), start=address)

    def _step(self, request: ModelRequest) -> Step:
        self.reached.set()
        return Step(text="Too late.", latency_seconds=PATIENCE_SECONDS)

    async def ask(self) -> None:
        """Ask it."""
        await self._agent.abrowse("How long?", max_steps=12)


@needs_chromium
@needs_proc
async def test_a_cancelled_question_closes_chromium_before_it_ends(children: set[str]) -> None:
    """Whoever cancels does not go on beside a Chromium that is still there."""
    with serve_pages() as address:
        waiting = Waiting(address)
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.ask)
            await waiting.reached.wait()
            assert len(processes_below(os.getpid()) - children) > 2
            group.cancel_scope.cancel()
        assert processes_below(os.getpid()) <= children


@needs_chromium
@needs_proc
async def test_a_task_that_asyncio_cancels_closes_chromium_too(children: set[str]) -> None:
    """The caller may know nothing of anyio."""
    with serve_pages() as address:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Waiting(address).ask(), 3)
        assert processes_below(os.getpid()) <= children


@needs_chromium
@needs_proc
@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.6, 1.5])
async def test_whenever_it_is_cancelled_nothing_is_left(children: set[str], seconds: float) -> None:
    """Also while the driver or Chromium starts, and while a page loads."""
    with serve_pages() as address:
        with anyio.move_on_after(seconds):
            await Waiting(address).ask()
        assert processes_below(os.getpid()) <= children


@needs_chromium
@needs_proc
async def test_an_error_of_the_model_closes_chromium(children: set[str]) -> None:
    """It is the caller's error, and leaves nothing behind."""
    model = ScriptedModel([ModelError("no credit left")])
    with serve_pages() as address, pytest.raises(ModelError, match="no credit left"):
        await BrowserAgent(model, start=address).abrowse("Anything?", max_steps=12)
    assert processes_below(os.getpid()) <= children


@needs_chromium
@needs_proc
async def test_a_chromium_that_dies_is_an_honest_ending(children: set[str]) -> None:
    """Its pages can't be opened any more; what was read before is not lost."""

    def kill(request: ModelRequest) -> ModelTurn:
        for pid in processes_below(os.getpid()) - children:
            with suppress(FileNotFoundError, ProcessLookupError):
                if "--type=" not in (command := Path(f"/proc/{pid}/cmdline").read_text()) and "headless" in command:
                    os.kill(int(pid), signal.SIGKILL)
        return act("open_link", link="Parts")

    model = ScriptedModel([act("open_link", link="Articles"), kill, "There are three articles."])
    with serve_pages() as address:
        browsed = await BrowserAgent(model, start=address).abrowse("How many articles?", max_steps=12)
    assert browsed.text == "There are three articles."
    assert [source.rpartition("/")[2] for source in browsed.sources] == ["index.html", "articles.html"]
    assert becomes_true(lambda: processes_below(os.getpid()) <= children)


PROGRAM = """
import signal
from tests.research.test_browser_closing import Waiting
from examples.research_assistant.browser_site import serve_pages
import anyio
signal.signal(signal.SIGINT, signal.default_int_handler)
async def main(address):
    waiting = Waiting(address)
    async with anyio.create_task_group() as group:
        group.start_soon(waiting.ask)
        await waiting.reached.wait()
        print("waiting", flush=True)
with serve_pages() as address:
    anyio.run(main, address)
"""


@needs_chromium
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_chromium_ends_with_a_program_that_is_killed(number: signal.Signals) -> None:
    """The program may have had no chance to close it; its profile does not stay on the disk for long either."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        left = processes_below(program.pid)
        assert len(left) > 2
        program.send_signal(number)
        program.communicate(timeout=PATIENCE_SECONDS)
    assert becomes_true(lambda: not any(map(is_running, left)))


async def test_a_missing_chromium_is_said_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: set[str]
) -> None:
    """There is neither one on the PATH nor Playwright's own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with serve_pages() as address, pytest.raises(ConfigError) as refused:
        await BrowserAgent(reader("?"), start=address).abrowse("Anything?", max_steps=12)
    assert str(refused.value) == (
        "chromium=None cannot be used: install it: apt-get install chromium, or playwright install chromium"
    )
    assert processes_below(os.getpid()) <= children


async def test_a_chromium_that_does_not_start_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: set[str]
) -> None:
    """With what it says itself."""
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho a library is missing >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with serve_pages() as address, pytest.raises(ConfigError) as refused:
        await BrowserAgent(reader("?"), start=address).abrowse("Anything?", max_steps=12)
    assert refused.value.value == str(broken)
    assert refused.value.remedy == "it does not start: a library is missing"
    assert processes_below(os.getpid()) <= children


def test_a_missing_playwright_is_said_with_its_remedy() -> None:
    """Where the browser is imported, and only there."""
    imports = "import examples.research_assistant; print('imported'); import examples.research_assistant.browser"
    program = f"import sys; sys.modules['playwright'] = None; {imports}"
    tried = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert tried.stdout == "imported\n"
    assert "ImportError: The browser needs Playwright: pip install 'endstop[research]'" in tried.stderr
