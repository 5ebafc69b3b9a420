"""What a LangChain chat model can raise, as errors of endstop: the one place that makes them."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import cast

from endstop._errors import ContextOverflow, ModelError
from endstop._messages import clean_text

_OVERFLOW = re.compile(
    r"context[ _](length|window|size)|maximum context|(prompt|input|request) is too (long|large)"
    r"|too many (input |prompt )?tokens|exceeds? the (available|maximum|model)",
    re.IGNORECASE,
)
_CONNECTION_ERRORS = frozenset(
    (
        "APIConnectionError",  # openai, anthropic and those made like them; their timeouts too
        "ClientConnectionError",  # aiohttp
        "ConnectionError",  # requests
        "DeadlineExceeded",  # google
        "HTTPClientError",  # botocore
        "ServiceUnavailable",  # google
        "Timeout",  # requests
        "TransportError",  # httpx
    )
)
_STATUS_PATHS = (
    ("status_code",),
    ("http_status",),
    ("code",),
    ("response", "status_code"),
    ("response", "ResponseMetadata", "HTTPStatusCode"),
)
_HEADER_PATHS = (("response", "headers"), ("headers",), ("response", "ResponseMetadata", "HTTPHeaders"))


def model_error(error: Exception) -> ModelError:
    """What a chat model raised as a `ModelError`, by its HTTP status or, without one, by its kind.

    Integrations wrap their provider's errors, so that the causes are looked at too. Nothing but the
    standard library and names is consulted: the provider packages need not be installed.
    """
    chain = list(_causes(error))
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    status = next((found for found in map(_status, chain) if found is not None), None)
    said = clean_text(f"{type(error).__name__}: {error}")
    if "ContextOverflowError" in names or (status in (None, 400, 413, 422) and _OVERFLOW.search(said)):
        return ContextOverflow(said, status=status)
    if status is None:
        retryable = (
            isinstance(error, (ConnectionError, TimeoutError))
            or not names.isdisjoint(_CONNECTION_ERRORS)
            or getattr(error, "is_retryable", False) is True
        )
    else:
        retryable = status in (408, 409, 425, 429) or (status >= 500 and status != 501)
    # The account is out of money, which waiting does not change.
    retryable = retryable and "insufficient_quota" not in said
    wait = next((found for found in map(_wait_seconds, chain) if found is not None), None)
    return ModelError(said, retryable=retryable, retry_after_seconds=wait, status=status)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    found = (_look(error, *path) for path in _STATUS_PATHS)
    return next((int(status) for status in found if isinstance(status, int) and 100 <= status < 600), None)


def _wait_seconds(error: BaseException) -> float | None:
    for path in _HEADER_PATHS:
        headers = _mapping(_look(error, *path))
        if headers is not None:
            return _retry_after_seconds({str(name).lower(): str(value) for name, value in headers.items()})
    return None


def _look(value: object, *path: str) -> object:
    """What stands at a path of attributes or keys inside a foreign object; `None` where there is nothing."""
    for name in path:
        mapping = _mapping(value)
        value = getattr(value, name, None) if mapping is None else mapping.get(name)
    return value


def _mapping(value: object) -> Mapping[object, object] | None:
    if not isinstance(value, Mapping):
        return None
    return cast("Mapping[object, object]", value)  # isinstance cannot say of what a mapping is


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """The wait that a provider asks for, in milliseconds, seconds or as a date; `None` where it says nothing of use."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
