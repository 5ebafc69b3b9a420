"""The embedded model's server: a child that starts, answers, and never outlives its parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest

from endstop._errors import ConfigError, EndstopError
from endstop.demo.server import ERROR_TAIL_CHARACTERS, ServerUnavailable, child_server, embedded_server
from endstop.demo.weights import cached_weights

if TYPE_CHECKING:
    from collections.abc import Callable

SERVES = "import sys; print('http://127.0.0.1:1', flush=True); sys.stdin.read()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVES + "; signal.pause()"
PATIENCE_SECONDS = 30.0


@pytest.fixture
def weights() -> Path:
    """The smaller model's weights, which no test fetches."""
    path = cached_weights("0.5b")
    if path is None:
        pytest.skip("weights of the embedded model are not in the cache")
    pytest.importorskip("xllamacpp", reason="the server of the embedded model is not installed")
    return path


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Whether it does within a time that is long for any machine."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.both_backends
async def test_a_child_that_serves_is_ended_with_the_block(tmp_path: Path) -> None:
    """Its address is its first line; afterwards no process is left."""
    program = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); " + SERVES
    async with child_server(python(program)) as address:
        assert address == "http://127.0.0.1:1"
        process_id = int((tmp_path / "pid").read_text())
        assert is_alive(process_id)
    assert not is_alive(process_id)


@pytest.mark.both_backends
async def test_a_cancelled_block_ends_its_child_too(tmp_path: Path) -> None:
    """Ctrl-C and time limits leave no process behind."""
    program = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); " + SERVES
    with anyio.CancelScope() as scope:
        async with child_server(python(program)):
            scope.cancel()
            await anyio.sleep_forever()
    assert not is_alive(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no signal to ignore")
async def test_a_child_that_does_not_end_is_killed() -> None:
    """Asked politely first, it has a moment to obey."""
    async with child_server(python(STUBBORN), end_seconds=0.05):
        pass


async def test_a_child_that_ended_already_is_no_error() -> None:
    """A server that fell over is found by those who ask it, not by those who end it."""
    async with child_server(python("print('http://127.0.0.1:1')")):
        await anyio.sleep(0.05)


async def test_what_the_child_writes_is_read_in_pieces() -> None:
    """A line may come in several reads, and more may follow it."""
    program = (
        "import sys, time\nfor piece in ('http://127', '.0.0.1:1', '\\nmore'):\n"
        "    sys.stdout.write(piece); sys.stdout.flush(); time.sleep(0.02)\nsys.stdin.read()"
    )
    async with child_server(python(program)) as address:
        assert address == "http://127.0.0.1:1"


@pytest.mark.both_backends
async def test_a_child_that_fails_says_why() -> None:
    """The error has the exit code and the end of what the child wrote to its standard error."""
    program = f"import sys; sys.stderr.write('x' * {ERROR_TAIL_CHARACTERS} + 'no such model'); sys.exit(3)"
    with pytest.raises(ServerUnavailable, match="ended with exit code 3") as caught:
        async with child_server(python(program)):
            pytest.fail("a server that is not there was entered")
    assert isinstance(caught.value, EndstopError)
    assert caught.value.code == "server_unavailable"
    assert caught.value.tail.endswith("no such model")
    assert len(caught.value.tail) == ERROR_TAIL_CHARACTERS


async def test_a_child_that_is_not_ready_in_time_is_given_up() -> None:
    """The wait is bounded, and the child does not stay."""
    with pytest.raises(ServerUnavailable, match=r"not ready within 0\.05 s$"):
        async with child_server(python("import sys; sys.stdin.read()"), ready_seconds=0.05):
            pytest.fail("a server that is not there was entered")


async def test_a_missing_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Misuse is told apart from a server that failed."""
    with pytest.raises(ConfigError, match="model_path="):
        async with embedded_server(tmp_path / "none.gguf"):
            pytest.fail("a server that is not there was entered")


async def test_a_file_that_is_no_model_is_said_by_the_server(tmp_path: Path) -> None:
    """The reason is in the error, not only on a terminal."""
    pytest.importorskip("xllamacpp", reason="the server of the embedded model is not installed")
    (tmp_path / "text.gguf").write_text("this is no model")
    with pytest.raises(ServerUnavailable, match="GGUF"):
        async with embedded_server(tmp_path / "text.gguf"):
            pytest.fail("a server that is not there was entered")


async def test_the_real_model_answers_in_the_form_asked_for(weights: Path) -> None:
    """A JSON schema is kept whatever the model has to say, and usage is reported."""
    schema = {
        "type": "object",
        "properties": {"tool": {"enum": ["search", "open"]}, "query": {"type": "string", "maxLength": 40}},
        "required": ["tool", "query"],
        "additionalProperties": False,
    }
    request = {
        "messages": [{"role": "user", "content": "Call a tool that finds the word garden. Write JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "step", "strict": True, "schema": schema}},
        "temperature": 0,
        "max_tokens": 60,
    }
    async with (
        embedded_server(weights, context_tokens=1024) as server,
        httpx.AsyncClient(base_url=server.base_url, timeout=120) as client,
    ):
        assert server.model_name == weights.stem
        response = await client.post("/chat/completions", json={"model": server.model_name, **request})
    assert response.status_code == 200
    body = response.json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    answer = json.loads(choice["message"]["content"])
    assert answer.keys() == {"tool", "query"}
    assert answer["tool"] in ("search", "open")
    assert body["usage"]["prompt_tokens"] > 0
    assert 0 < body["usage"]["completion_tokens"] <= 60


@pytest.mark.skipif(sys.platform == "win32", reason="there is no signal that cannot be handled")
def test_the_server_dies_with_a_parent_that_is_killed(weights: Path) -> None:
    """The parent had no chance to end it, so it must notice by itself."""
    program = (
        "import sys, anyio\n"
        "from endstop.demo.server import embedded_server\n"
        "async def main():\n"
        "    async with embedded_server(sys.argv[1], context_tokens=512) as server:\n"
        "        print(server.base_url, flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)"
    )
    with subprocess.Popen([*python(program), str(weights)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        base_url = parent.stdout.readline().strip()
        assert is_listening(base_url)
        parent.send_signal(signal.SIGKILL)
    assert becomes_true(lambda: not is_listening(base_url))


def is_listening(base_url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{base_url}/models", timeout=PATIENCE_SECONDS).status_code == 200
    return False
