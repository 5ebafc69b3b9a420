"""What one turn produced that its kernel result does not carry: extraction operations, and how much was recalled.

An adopter that serves a turn opens an observation around it and reads it afterwards::

    with observing() as seen:
        result = await agent.run(prompt)
    print(seen.recalled, seen.extraction_ops)

The record is one mutable object held by a context variable. A task that the kernel starts inside the
block inherits the variable and so writes into the object that the caller reads. A delegated child
opens an observation of its own and cannot overwrite its parent's. With none open nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True, kw_only=True)
class TurnObservation:
    """What was observed of one turn.

    `extraction_ops` and `extraction_seen` are those of its last model round. `recalled` is how many
    memories the retrieval stage admitted, `None` where none reported.
    """

    extraction_ops: tuple[Mapping[str, Any], ...] = ()
    extraction_seen: bool = False
    recalled: int | None = None


class ExtractingTurn(Protocol):
    """A model turn as far as it is observed."""

    @property
    def extraction_ops(self) -> tuple[Mapping[str, Any], ...]:
        """The operations that were in its envelopes."""
        ...

    @property
    def extraction_seen(self) -> bool:
        """Whether it had a complete envelope."""
        ...


_open: ContextVar[TurnObservation | None] = ContextVar("endstop_turn_observation", default=None)


@contextmanager
def observing() -> Generator[TurnObservation]:
    """Open an observation for the turn that is served in the block; it is closed on exit, also on an error."""
    observation = TurnObservation()
    token = _open.set(observation)
    try:
        yield observation
    finally:
        _open.reset(token)


def observe_turn(turn: ExtractingTurn) -> None:
    """Record a model turn's extraction; the last round wins. Without an open observation nothing happens."""
    observation = _open.get()
    if observation is not None:
        observation.extraction_ops = tuple(turn.extraction_ops)
        observation.extraction_seen = turn.extraction_seen


def observe_recall(counts: Mapping[str, Any] | None) -> None:
    """Record how many memories were admitted, where the retrieval stage says so; otherwise change nothing."""
    observation = _open.get()
    if observation is not None and counts and "admitted" in counts:
        observation.recalled = int(counts["admitted"])
