"""The seam between the kernel and any model: one method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from endstop._messages import JsonObject, Message, ModelTurn, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    `messages` is the history, oldest first, and only ever grows between the requests of one run, so
    that an adapter may keep what it encoded before. `output_schema` asks for an answer that is JSON
    of this schema. `max_output_tokens` caps the answer (`None`: the provider's own cap). `final`
    asks for an answer without tools: `tools` is empty then.
    """

    messages: Sequence[Message]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    output_schema: JsonObject | None = None
    max_output_tokens: int | None = None
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of an answer while it is being written."""

    text: str
    kind: Literal["text", "thinking"] = "text"


OnDelta: TypeAlias = Callable[[Delta], Awaitable[None]]


class Model(Protocol):
    """Anything that answers a `ModelRequest`.

    `name` is what prices are looked up by and what results report, for example `"gpt-4o-mini"` or
    `"openai:gpt-4o-mini"`.
    """

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answer the request, once: retrying is the caller's, because every attempt is paid from the budget.

        Pieces of the answer are given to `on_delta` as they come, in order; joined they are the
        turn's `text` (and `thinking`). An adapter that cannot stream gives none.

        Raises:
            ModelError: the provider refused or failed; `retryable` says whether trying again may help.
            ContextOverflow: the request does not fit into the model's context.
        """
        ...
