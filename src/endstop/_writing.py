"""What a model writes while it answers one request: told as it comes, and whole when it is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from endstop._envelope import EnvelopeFilter
from endstop._errors import ModelError
from endstop._events import TextDelta, Thinking

if TYPE_CHECKING:
    from collections.abc import Callable

    from endstop._events import Event
    from endstop._messages import ModelTurn
    from endstop._stream import EventQueue
    from endstop.models.base import Delta


class Writing:
    """The answer to one request while it is written.

    Pieces are told with their extraction envelopes taken out. `written` counts the characters that
    came, `shown` is the text that was told. `cap` is the request's output cap in tokens, if it has one.
    """

    def __init__(
        self, queue: EventQueue, tell: Callable[[Event], None], *, extraction_tag: str | None, cap: int | None
    ) -> None:
        self._queue = queue
        self._tell = tell
        self._tag = extraction_tag
        self._envelope = None if extraction_tag is None else EnvelopeFilter(extraction_tag)
        self._most_chars = None if cap is None else _most_chars(cap)
        self._shown: list[str] = []
        self.written = 0
        self.is_over = False

    @property
    def shown(self) -> str:
        """The text that was told so far."""
        return "".join(self._shown)

    async def on_delta(self, delta: Delta) -> None:
        """Tell a piece, and wait where the reader is far behind.

        Raises:
            ModelError: the model has written far more than its cap: it would go on for ever.
        """
        if self.is_over:
            return  # a model that goes on writing after its answer is not listened to
        self.written += len(delta.text)
        if self._most_chars is not None and self.written > self._most_chars:
            raise ModelError(f"the model does not keep its output cap: it wrote {self.written} characters and went on")
        if delta.kind == "thinking":
            self._tell(Thinking(text=delta.text))
        else:
            self._show(delta.text)
        if self._queue.is_full:
            await self._queue.room()

    def finish(self, turn: ModelTurn) -> ModelTurn:
        """Tell what was not told yet, and give the turn with the operations of its envelopes beside its text."""
        if turn.text and not self.written:
            self._show(turn.text)
        if self._envelope is not None and (held := self._envelope.end()):
            self._tell(TextDelta(text=held))
        return self._opened(turn)

    def _show(self, text: str) -> None:
        if self._envelope is not None:
            text = self._envelope.feed(text)
        if text:
            self._shown.append(text)
            self._tell(TextDelta(text=text))

    def _opened(self, turn: ModelTurn) -> ModelTurn:
        if self._tag is None or "</" not in turn.text:
            return turn
        envelope = EnvelopeFilter(self._tag)
        text = envelope.feed(turn.text) + envelope.end()
        if not envelope.seen:
            return turn
        # The provider's own form still has the envelope in its text.
        ops = tuple(envelope.ops)
        return replace(turn, text=text, native=None, extraction_ops=ops, extraction_seen=True)


def _most_chars(cap: int) -> int:
    """More characters than so many tokens can be."""
    return 10_000 + 50 * cap
