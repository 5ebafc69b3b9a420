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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

import anyio
from anyio.abc import ByteReceiveStream, Process

from endstop._errors import ConfigError, EndstopError

READY_SECONDS = 120.0
"""How long loading the weights may take; from a cold disk a gigabyte takes the better part of a minute."""

END_SECONDS = 5.0
PROMPT_CACHE_MIB = 256
ERROR_TAIL_CHARACTERS = 2000


class ServerUnavailable(EndstopError):  # noqa: N818 - says what the caller meets, as WeightsUnavailable does
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
) -> AsyncIterator[ServerInfo]:
    """Serve a GGUF model on a free loopback port until the block is left.

    `context_tokens` is the context of each of the `slots` requests that are served at once. Raises
    `ServerUnavailable` with the end of the server's standard error where it is not ready within
    `ready_seconds`, and `ConfigError` where the file is missing.
    """
    path = Path(model_path)
    if not path.is_file():
        raise ConfigError("model_path", str(path), "name a GGUF file that is there")
    if importlib.util.find_spec("xllamacpp") is None:
        raise ServerUnavailable("xllamacpp is not installed: install endstop[demo]")
    command = [sys.executable, "-m", "endstop.demo.server", str(path), str(context_tokens), str(slots), str(threads)]
    # Idle OpenMP threads otherwise spin, and take the cores from the agent that waits for them.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryFile() as errors:
        async with await anyio.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process:
            try:
                address = await _address(process, errors, ready_seconds)
                yield ServerInfo(base_url=f"{address}/v1", model_name=path.stem)
            finally:
                await _end(process)


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


async def _end(process: Process) -> None:
    """End the child, also from a block that is being cancelled."""
    with anyio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(END_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _tail(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")[-ERROR_TAIL_CHARACTERS:].strip()


def main(arguments: Sequence[str]) -> None:
    """The child: serve `MODEL CONTEXT_TOKENS SLOTS THREADS` until the standard input ends."""
    model_path, context_tokens, slots, threads = arguments[0], *(int(argument) for argument in arguments[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_standard_input, daemon=True).start()
    # The library may print to the standard output, which belongs to the one line that the parent waits for.
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)
        llama = importlib.import_module("xllamacpp")
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


def _exit_with_standard_input() -> None:
    """End at once when the parent has gone; unbuffered, because a buffer's lock would outlive a failed start."""
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
