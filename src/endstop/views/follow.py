"""A run followed to its end: shown, interruptible, and kept."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

from endstop._errors import LimitExceeded, RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path
    from types import FrameType

    from endstop._results import AgentResult
    from endstop._state import RunState
    from endstop._stream import RunStream
    from endstop.views.base import View


async def follow(
    start: Callable[[], RunStream[object]], view: View, *, save: Path | None, on_interrupt: Callable[[], None]
) -> AgentResult[object]:
    """Start a run, show it in the view to its end, and return its result.

    The result, or all that was done before a failure, is written to `save`, also where the view could
    not be written to any more. The first Ctrl-C calls `on_interrupt` and cancels the run in order; the
    next one ends the program at once.

    Raises:
        RunError: the run failed; what it has in `state` or `result` was saved.
    """
    stream = start()
    failure: RunError | None = None
    try:
        with _interruptible(stream, on_interrupt):
            async with stream:
                async for event in stream:
                    view.show(event)
    except RunError as error:
        failure = error
        raise
    finally:
        kept = _kept(stream, failure)
        try:
            if save is not None and kept is not None:
                _write(save, kept)
        finally:
            view.end(kept)
    return stream.result


@contextlib.contextmanager
def _interruptible(stream: RunStream[object], on_interrupt: Callable[[], None]) -> Generator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # whoever started the program in the background wants it to live
        yield
        return
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        on_interrupt()
        stream.cancel()

    def interrupt(number: int, frame: FrameType | None) -> None:
        # The next one is not for Python to handle, so that it works even where a tool keeps Python busy.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        loop.call_soon_threadsafe(cancel)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _kept(stream: RunStream[object], failure: RunError | None) -> AgentResult[object] | RunState | None:
    """All that is known of a run that is over: its result, or its state where it failed, whatever it failed of."""
    if isinstance(failure, LimitExceeded):
        return failure.result
    if failure is not None:
        return failure.state
    with contextlib.suppress(RuntimeError):
        return stream.result
    return stream.state


def _write(path: Path, kept: AgentResult[object] | RunState) -> None:
    """Write it whole or not at all: the file may hold the only copy of the leg before."""
    path = path.resolve()
    part = path.with_name(f"{path.name}.part")
    part.write_text(kept.to_json(), encoding="utf-8")
    part.replace(path)
