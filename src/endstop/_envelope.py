"""The extraction envelope: operations that a model writes beside its answer, taken out before anybody sees the text.

`<MEMORY_EXTRACT>{"ops": [...]}</MEMORY_EXTRACT>`. Only a complete envelope is taken out; one that is
not closed, or whose content is no such object, stays text: nothing is lost. A closing tag ends the
first envelope that is open, or, where that is none, the one that opened last: a model that names the
tag, or begins an envelope anew, does not spoil the next.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, TypeGuard

from endstop._errors import ConfigError
from endstop._messages import parse_arguments

if TYPE_CHECKING:
    from endstop._messages import JsonObject, JsonValue

EXTRACTION_TAG = "MEMORY_EXTRACT"
"""The tag of the envelope where an agent sets no other."""

_SOMETHING = re.compile(r"[^ \t\n\r]")


@functools.cache
def _exactly(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


class EnvelopeFilter:
    """Takes envelopes out of a text that comes in pieces, split anywhere.

    `feed` returns what may be shown so far. Held back is only an envelope that has begun (its tag, and
    after it nothing or the beginning of an object), and an end of the text that may be the beginning of
    the tag. `ops` and `seen` tell what was taken out. The time is linear in the text, however it is split.
    """

    __slots__ = ("_awaited", "_close", "_closing", "_held", "_open", "_tail", "ops", "seen")

    def __init__(self, tag: str) -> None:
        self._open = f"<{tag}>"
        self._close = f"</{tag}>"
        self._closing = _exactly(self._close)
        self._held: list[str] = []
        # What must come before it is worth reading again all that is held, and the end that it may have begun in.
        self._awaited: re.Pattern[str] | None = None
        self._tail = ""
        self.ops: list[JsonObject] = []
        self.seen = False

    def feed(self, piece: str) -> str:
        """The text that may be shown after this piece."""
        self._held.append(piece)
        if self._awaited is not None:
            self._tail += piece
            if self._awaited.search(self._tail) is None:
                self._tail = self._tail[1 - len(self._close) :]
                return ""
        return self._scan(self.end())

    def end(self) -> str:
        """What was held back and turned out to be no envelope; the text is over."""
        held = "".join(self._held)
        self._held, self._awaited, self._tail = [], None, ""
        return held

    def _scan(self, text: str) -> str:
        """The text without what is to be held back and without its complete envelopes, which are opened here."""
        shown: list[str] = []
        told = position = 0
        while (start := text.find(self._open, position)) >= 0:
            position = start + len(self._open)
            content = _SOMETHING.search(text, position)
            if content is not None and content[0] != "{":
                continue
            end = -1 if content is None else text.find(self._close, position)
            if end < 0:
                self._awaited = _SOMETHING if content is None else self._closing
                self._tail = "" if content is None else text[1 - len(self._close) :]
                break
            position = end + len(self._close)
            begun = self._take(text, start, end)
            if begun is not None:
                shown.append(text[told:begun])
                told = position
        if start < 0:
            start = len(text) - _beginning_at_end(text, self._open)
        self._held = [text[start:]]
        return "".join((*shown, text[told:start]))

    def _take(self, text: str, start: int, end: int) -> int | None:
        """Open the envelope that ends here, and say where it began; `None` where there is none."""
        for begun in (start, text.rfind(self._open, start + 1, end)):
            content, invalid = parse_arguments(text[begun + len(self._open) : end]) if begun >= 0 else ({}, None)
            ops = content.get("ops")
            if invalid is None and _are_objects(ops):
                self.ops += ops
                self.seen = True
                return begun
        return None


def checked_tag(tag: str | None) -> str | None:
    """The tag, if it can be one.

    Raises:
        ConfigError: it is not a name of letters, digits and underscores.
    """
    if tag is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", tag):
        raise ConfigError(
            "extraction_tag", tag, "use a name of letters, digits and underscores, or None for no envelope"
        )
    return tag


def _beginning_at_end(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    start = text.rfind("<", 1 - len(tag))
    return len(text) - start if start >= 0 and tag.startswith(text[start:]) else 0


def _are_objects(ops: JsonValue) -> TypeGuard[list[JsonObject]]:
    return isinstance(ops, list) and all(isinstance(op, dict) for op in ops)
