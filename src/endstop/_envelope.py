"""The extraction envelope: operations that a model writes beside its answer, taken out before anybody sees the text.

`<MEMORY_EXTRACT>{"ops": [...]}</MEMORY_EXTRACT>`. Only a complete envelope is taken out; one that is
not closed, or whose content is no such object, stays text: nothing is lost.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeGuard

from endstop._errors import ConfigError

if TYPE_CHECKING:
    from endstop._messages import JsonObject, JsonValue

EXTRACTION_TAG = "MEMORY_EXTRACT"
"""The tag of the envelope where an agent sets no other."""


class EnvelopeFilter:
    """Takes envelopes out of a text that comes in pieces, split anywhere.

    `feed` returns what may be shown so far. Held back is only an envelope that has begun, and an end
    of the text that may be the beginning of its tag. `ops` and `seen` tell what was taken out.
    """

    __slots__ = ("_close", "_held", "_open", "ops", "seen")

    def __init__(self, tag: str) -> None:
        self._open = f"<{tag}>"
        self._close = f"</{tag}>"
        self._held = ""
        self.ops: list[JsonObject] = []
        self.seen = False

    def feed(self, piece: str) -> str:
        """The text that may be shown after this piece."""
        text = self._held + piece
        shown: list[str] = []
        while (start := text.find(self._open)) >= 0:
            end = text.find(self._close, start)
            if end < 0:
                break
            body = text[start + len(self._open) : end]
            shown.append(text[:start])
            if not self._take(body):
                shown.append(text[start : end + len(self._close)])
            text = text[end + len(self._close) :]
        keep = start if start >= 0 else len(text) - _beginning_at_end(text, self._open)
        self._held = text[keep:]
        return "".join((*shown, text[:keep]))

    def end(self) -> str:
        """What was held back and turned out to be no envelope; the text is over."""
        held, self._held = self._held, ""
        return held

    def _take(self, body: str) -> bool:
        try:
            content: JsonValue = json.loads(body)
        except (ValueError, RecursionError):
            return False
        ops = content.get("ops") if isinstance(content, dict) else None
        if not _are_objects(ops):
            return False
        self.ops += ops
        self.seen = True
        return True


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
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0


def _are_objects(ops: JsonValue) -> TypeGuard[list[JsonObject]]:
    return isinstance(ops, list) and all(isinstance(op, dict) for op in ops)
