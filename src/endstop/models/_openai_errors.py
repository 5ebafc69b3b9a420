"""What can go wrong at a chat-completions endpoint, as errors of endstop: the one place that makes them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from endstop._errors import ContextOverflow, ModelError
from endstop.models._openai_codec import parse_json, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from endstop._messages import JsonValue

_RETRYABLE = frozenset({408, 409, 425, 429})
"""Beside these, every server error but 501 may pass."""

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_TEXT = re.compile(
    r"maximum context length|context (length|window|size|limit)\b.{0,40}exceed"
    r"|exceed.{0,60}\bcontext (length|window|size|limit)"
    r"|(prompt|input) is too long|input token count.{0,40}exceeds",
    re.IGNORECASE | re.DOTALL,
)
_USED_UP_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_UNPARSED_TEXT = re.compile(r"failed to parse|does not match the expected", re.IGNORECASE)

_REMEDIES = {
    401: "check api_key= or OPENAI_API_KEY",
    403: "check what this api_key= may use",
    404: "check the model's name, and base_url=, which ends in /v1 on most servers",
}
_LONGEST_MESSAGE = 1000
_SHORTEST_SECRET = 8
"""Shorter keys are placeholders that local servers take ("none", "x"): hiding them would garble the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What a provider says went wrong: its words, its codes for it, and the status where it names one."""

    message: str
    codes: frozenset[str] = frozenset()
    status: int | None = None


class EndpointErrors:
    """Makes the errors of one endpoint: each names the endpoint, and none tells the key."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self._where = f"the model endpoint {base_url}"
        self._secret = api_key if api_key and len(api_key) >= _SHORTEST_SECRET else None

    def of_transport(self, problem: str, *, retryable: bool = True) -> ModelError:
        """No whole answer came; `problem` says why."""
        return self._error(problem, retryable=retryable)

    def of_response(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """The endpoint answered with an error status."""
        complaint = _read_body(body)
        remedy = _REMEDIES.get(status, "")
        if 300 <= status < 400:
            remedy = f"it redirects to {headers.get('location', 'nowhere')}: set base_url= to where it moved"
        return self._refusal(complaint, status, f"answered {status}", remedy, _retry_after_seconds(headers))

    def of_payload(self, payload: JsonValue) -> ModelError:
        """The endpoint answered 200 and put an error object into the answer, or into its stream.

        Without a status of its own, and without a code that says otherwise, it is the server's failure and may pass.
        """
        complaint = read_complaint(payload) or Complaint(message=_shown(to_json(payload)))
        status = complaint.status or (400 if "invalid_request_error" in complaint.codes else 500)
        return self._refusal(complaint, status, "failed while it answered")

    def of_body(self, content_type: str, body: bytes) -> ModelError:
        """The endpoint answered 200 with something that is no answer of a model."""
        return self._error(
            f"answered 200 with no chat completion but {content_type or 'no content type'}: {_shown(body)!r} "
            "(check base_url=, which ends in /v1 on most servers, and any proxy before it)"
        )

    def _refusal(
        self, complaint: Complaint, status: int, what: str, remedy: str = "", retry_after_seconds: float | None = None
    ) -> ModelError:
        problem = f"{what}: {complaint.message}" + (f" ({remedy})" if remedy else "")
        overflows = complaint.codes & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(complaint.message)
        if overflows and status != 429:
            return self._error(problem, kind=ContextOverflow, status=status)
        if status == 500 and _UNPARSED_TEXT.search(complaint.message):
            problem += (
                " (the server could not parse what the model wrote, or an earlier call in the history: asked again it "
                "would most likely fail again; SchemaTools, or another chat template on the server, avoids this)"
            )
            return self._error(problem, status=status)
        retryable = status in _RETRYABLE or (status >= 500 and status != 501)
        if not retryable or complaint.codes & _USED_UP_CODES:
            return self._error(problem, status=status)
        return self._error(problem, retryable=True, retry_after_seconds=retry_after_seconds, status=status)

    def _error(
        self,
        problem: str,
        *,
        kind: type[ModelError] = ModelError,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        status: int | None = None,
    ) -> ModelError:
        message = f"{self._where} {problem}"
        if self._secret is not None:
            message = message.replace(self._secret, "***")
        return kind(message, retryable=retryable, retry_after_seconds=retry_after_seconds, status=status)


def read_complaint(payload: JsonValue) -> Complaint | None:
    """The complaint in an error object, in any of the forms in use; `None` where it is none of them.

    OpenAI's, llama.cpp's and most others' is `{"error": {"message", "code", "type"}}`, some put it into a list;
    Ollama's is `{"error": "..."}`, vLLM's the bare inner object, FastAPI's `{"detail": ...}`. OpenRouter adds what the
    provider behind it said as `metadata.raw`.
    """
    value = payload[0] if isinstance(payload, list) and payload else payload
    if isinstance(value, dict) and value.get("error"):
        value = value["error"]
    if isinstance(value, str):
        return Complaint(message=_cut(value))
    if not isinstance(value, dict):
        return None
    said = value.get("message") or value.get("detail")
    if not said:
        return None
    message = said if isinstance(said, str) else to_json(said).decode("utf-8")
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        message = f"{message}: {raw}"
    named = [value.get("code"), value.get("type")]
    status = named[0] if isinstance(named[0], int) and 400 <= named[0] < 600 else None
    return Complaint(
        message=_cut(message), codes=frozenset(name for name in named if isinstance(name, str)), status=status
    )


def _read_body(body: bytes) -> Complaint:
    try:
        complaint = read_complaint(parse_json(body))
    except ValueError:
        complaint = None
    return complaint or Complaint(message=_shown(body) or "no message")


def _shown(body: bytes) -> str:
    """The beginning of a body, on one line."""
    return " ".join(body[:_LONGEST_MESSAGE].decode("utf-8", "replace").split())[:200]


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}..."


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long the provider asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    milliseconds, value = _number(headers.get("retry-after-ms")), headers.get("retry-after")
    seconds = milliseconds / 1000 if milliseconds is not None else _number(value)
    if seconds is None and value is not None:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None if seconds is None else max(0.0, seconds)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
