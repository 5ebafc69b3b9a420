"""Stages around the loop: retrieval before the first round, and the post-model stage after the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from endstop._messages import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved:
    """What a retrieval stage found: `text` for the model to read before the prompt (empty for nothing), and counts.

    `counts` are reported in the `retrieved` event; `admitted` is how many memories are in the text.
    """

    text: str = ""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


class Retrieval(Protocol):
    """What an agent recalls before its first round."""

    async def retrieve(self, prompt: str) -> Retrieved:
        """Find what may help with the prompt's text. An exception ends the run."""
        ...


class PostModel(Protocol):
    """What happens with the operations that the model wrote into extraction envelopes."""

    async def apply(self, ops: Sequence[JsonObject]) -> None:
        """Apply the operations of one leg of a run, in the order written; called once, and only if there are any."""
        ...
