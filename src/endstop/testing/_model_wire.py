"""What a model's conformance kit speaks of: a provider's answers, the harness that gives them, and contracts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from endstop._messages import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from endstop.models.base import Model, ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """A tool call as a provider sends it: the text of its arguments may come in pieces, and may be no JSON."""

    name: str
    arguments: tuple[str, ...] = ("{}",)
    call_id: str = "call_1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFailure:
    """How a provider fails: with an HTTP status, by a connection that breaks, or because the request is too long."""

    kind: Literal["status", "connection", "context_overflow"] = "status"
    status: int = 500
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireAnswer:
    """One answer of a provider, before the adapter has read it.

    `text` and `thinking` come in these pieces where the adapter streams. `finish_reason` is what the
    provider reports, in whatever words are its own; left out, it is `"tool_calls"` or `"stop"`. With
    `failure`, the pieces come first and then it fails. With `hangs`, the pieces come and then nothing.
    """

    text: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    calls: tuple[WireCall, ...] = ()
    refusal: str = ""
    finish_reason: Literal["stop", "tool_calls", "length", "content_filter"] | None = None
    usage: Usage | None = None
    failure: WireFailure | None = None
    hangs: bool = False


class Unsupported(Exception):
    """Raised by a harness whose provider has no such thing, with the reason; the contract is skipped."""


class ModelHarness(Protocol):
    """Puts an adapter in front of a provider that answers as told."""

    def model(self, answers: Sequence[WireAnswer]) -> AbstractAsyncContextManager[Model]:
        """A model whose provider gives these answers, in order.

        Raises:
            Unsupported: this provider cannot answer so.
        """
        ...

    def requests(self) -> Sequence[ModelRequest]:
        """What the provider of the newest model was sent, oldest first, read back from the form it was sent in.

        Only what that form holds counts: a tool return's `name` and `status`, a turn's `usage` and
        the like are not looked at.
        """
        ...


class ContractBroken(AssertionError):
    """A contract does not hold; the message says what was expected and what came."""


Check: TypeAlias = Callable[[ModelHarness], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One thing that every model must keep. `check` raises `ContractBroken` where it does not."""

    number: int
    name: str
    rule: str
    check: Check

    def __str__(self) -> str:
        return f"{self.number:02}-{self.name}"
