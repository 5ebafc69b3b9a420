"""The demo in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PATIENCE_SECONDS = 120.0
"""How long a slow machine may take for what takes seconds; nothing waits for it to pass."""

# Whoever runs the tests may have been started with Ctrl-C ignored, which a child inherits.
LAUNCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from endstop.cli import main
sys.exit(main())
"""


@contextmanager
def demo_process(
    *arguments: str, environment: Mapping[str, str] | None = None, output: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """`endstop demo`, leading a process group of its own, of which nothing outlives the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
        encoding="utf-8",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    with process:
        watchdog = threading.Timer(PATIENCE_SECONDS, send, [process, signal.SIGKILL])
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            send(process, signal.SIGKILL)


def send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Sends a signal to the demo and its children, as a terminal does with Ctrl-C."""
    if has_processes(process):
        os.killpg(process.pid, number)


def has_processes(process: subprocess.Popen[str]) -> bool:
    """Whether the demo or a child of it is there."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What it prints, up to the line with these words."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if words in line:
            return printed
    raise AssertionError(f"it ended without printing {words!r}:\n{printed}")


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Whether it does within a time that is long for any machine."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
