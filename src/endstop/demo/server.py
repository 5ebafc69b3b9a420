"""The embedded model: an OpenAI-compatible server in a child process of its own, on the loopback interface.

The child is this module run as a program. Three things tie it to its parent: it writes one line to
its standard output once it serves; it reads its standard input to the end, which comes when the
parent closes it or dies by any means; and it ignores Ctrl-C, which a terminal sends to both, so that
the parent can end its run while the model still answers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

import anyio

from endstop._errors import ConfigError, EndstopError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from anyio.abc import ByteReceiveStream, Process

READY_SECONDS = 120.0
"""How long loading the weights may take; from a cold disk a gigabyte takes the better part of a minute."""

END_SECONDS = 5.0
"""How long a server may take to end when it is asked to."""

PROMPT_CACHE_MIB = 256
"""Memory in which the server keeps prompts that are not in a slot now."""

ERROR_TAIL_CHARACTERS = 2000
"""How much of the server's standard error an error carries."""


class ServerUnavailable(EndstopError):
    """The server of the embedded model did not start; `tail` is the end of what it wrote to standard error."""

    code: ClassVar[str] = "server_unavailable"

    def __init__(self, reason: str, *, tail: str = "") -> None:
        self.reason = reason
        self.tail = tail
        super().__init__(f"the server of the embedded model did not start: {reason}" + (f"\n{tail}" if tail else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Where the server answers: the base URL as OpenAI clients take it (it ends in `/v1`), and the model's name."""

    base_url: str
    model_name: str


@asynccontextmanager
async def embedded_server(
    model_path: str | Path,
    *,
    context_tokens: int = 8192,
    slots: int = 1,
    threads: int = 2,
    ready_seconds: float = READY_SECONDS,
) -> AsyncGenerator[ServerInfo]:
    """Serve a GGUF model on a free loopback port until the block is left.

    `context_tokens` is the context of each of the `slots` requests that are served at once.

    Raises:
        ConfigError: the file is missing.
        ServerUnavailable: the server is not installed, ended, or was not ready within `ready_seconds`.
    """
    path = Path(model_path)
    if not await anyio.Path(path).is_file():
        raise ConfigError("model_path", str(path), "name a GGUF file that is there")
    if importlib.util.find_spec("xllamacpp") is None:  # pragma: no cover - the tests have every extra
        raise ServerUnavailable("xllamacpp is not installed: install endstop[demo]")
    command = [sys.executable, "-m", "endstop.demo.server", str(path), str(context_tokens), str(slots), str(threads)]
    async with child_server(command, ready_seconds=ready_seconds) as address:
        yield ServerInfo(base_url=f"{address}/v1", model_name=path.stem)


@asynccontextmanager
async def child_server(
    command: Sequence[str], *, ready_seconds: float = READY_SECONDS, end_seconds: float = END_SECONDS
) -> AsyncGenerator[str]:
    """Run a program that serves: its first line is its address, and it ends when its standard input does.

    When the block is left it is asked to end, and killed where it has not within `end_seconds`.

    Raises:
        ServerUnavailable: it ended, or wrote no line within `ready_seconds`.
    """
    # Idle OpenMP threads otherwise spin, and take the cores from the agent that waits for them.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryFile() as errors:
        async with await anyio.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process:
            try:
                yield await _address(process, errors, ready_seconds)
            finally:
                await _end(process, end_seconds)


async def _address(process: Process, errors: IO[bytes], seconds: float) -> str:
    """The child's line, which it writes once it serves."""
    assert process.stdout is not None, "the process was opened with a pipe"
    line = b""
    with anyio.move_on_after(seconds) as patience:
        line = await _first_line(process.stdout)
    if line:
        return line.decode().strip()
    if patience.cancelled_caught:
        raise ServerUnavailable(f"it was not ready within {seconds:g} s", tail=_tail(errors))
    raise ServerUnavailable(f"it ended with exit code {await process.wait()}", tail=_tail(errors))


async def _first_line(stream: ByteReceiveStream) -> bytes:
    """The bytes up to the first line's end, or nothing where the stream ends before."""
    received = b""
    with suppress(anyio.EndOfStream):
        while b"\n" not in received:
            received += await stream.receive()
        return received.partition(b"\n")[0]
    return b""


async def _end(process: Process, seconds: float) -> None:
    """End the child, also from a block that is being cancelled."""
    with anyio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(seconds):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _tail(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")[-ERROR_TAIL_CHARACTERS:].strip()


def main(arguments: Sequence[str]) -> None:  # pragma: no cover - runs in a child that is killed
    """The child: serve `MODEL CONTEXT_TOKENS SLOTS THREADS` until the standard input ends."""
    model_path = arguments[0]
    context_tokens, slots, threads = (int(argument) for argument in arguments[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_standard_input, daemon=True).start()
    # The library may print to the standard output, which belongs to the one line that the parent waits for.
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)
        llama = importlib.import_module("xllamacpp")  # it has no type stubs, and nothing of it leaves this function
        settings = llama.CommonParams()
        settings.model.path = model_path
        settings.hostnames = ["127.0.0.1"]
        settings.port = 0
        settings.n_ctx = context_tokens * slots
        settings.n_parallel = slots
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        settings.use_jinja = True
        settings.ui = False
        settings.fit_params = False
        settings.cache_ram_mib = PROMPT_CACHE_MIB
        settings.verbosity = 1
        server = llama.Server(settings)
        parent.write(f"{server.listening_address}\n")
    threading.Event().wait()


def _exit_with_standard_input() -> None:  # pragma: no cover - runs in a child that is killed
    """End at once when the parent has gone; unbuffered, because a buffer's lock would outlive a failed start."""
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":  # pragma: no cover - runs in a child that is killed
    main(sys.argv[1:])
