"""A turn in the shadow: the legacy body serves it, and the kernel goes through it again when it is over.

What the caller gets does not wait for that. The replays of a process run one after the other in a thread of their own,
and the process ends when the last is done.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from endstop.cutover._made import Made
from endstop.cutover._pregel import with_handler
from endstop.cutover._recorder import Recorder
from endstop.cutover.rehearsal import rehearse
from endstop.cutover.tape import turns_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.runnables import RunnableConfig

    from endstop._messages import JsonObject

NOT_REPLAYED = "not_replayed"
"""The difference of a turn that could not be replayed, so that nothing is known of it."""


class Shadow:
    """What is taped of one turn in memory, and what a replay of it on the kernel does otherwise."""

    def __init__(self, agent: object) -> None:
        self._agent = agent
        self._events: list[JsonObject] = []
        self._recorder = Recorder(self._events.append, redact=())

    @staticmethod
    def falls_on(agent: object) -> bool:
        """Whether the turns of an agent can be replayed: it is known what it was made of."""
        return isinstance(getattr(agent, "endstop_made", None), Made)

    def taping(self, config: RunnableConfig | None) -> RunnableConfig:
        """The configuration of the turn, with the tape."""
        return with_handler(config, self._recorder)

    def differences(self) -> tuple[str, ...]:
        """The codes of what the kernel does otherwise; none where it does the same, or would refuse the turn."""
        turn = next((turn for turn in turns_of(self._events) if turn.parent is None), None)
        if turn is None:
            return (NOT_REPLAYED,)
        replayed = rehearse(turn, self._agent)
        if replayed.error is not None:
            return (NOT_REPLAYED,)
        return tuple(dict.fromkeys(difference.code for difference in replayed.differences))


class _Background:
    """One thread that does what is asked of it, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: set[Future[None]] = set()

    def do(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="endstop-shadow")
            future = self._pool.submit(work)
            self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)

    def settle(self, timeout_seconds: float | None) -> bool:
        return not wait(set(self._waiting), timeout_seconds).not_done


_background = _Background()


def later(work: Callable[[], None]) -> None:
    """Do it in the background, after what was asked for before."""
    _background.do(work)


def settle_shadows(timeout_seconds: float | None = None) -> bool:
    """Wait until every shadow turn so far is in the ledger (`None`: however long it takes); whether it was in time."""
    return _background.settle(timeout_seconds)
