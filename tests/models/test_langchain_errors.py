"""What LangChain chat models raise, told apart."""

from __future__ import annotations

import email.utils
import time

import httpx
import pytest

from endstop._errors import ContextOverflow, ModelError
from endstop.models._langchain_errors import model_error


class ProviderError(Exception):
    """An error with whatever a provider's package puts on it."""

    def __init__(self, message: str = "no", **fields: object) -> None:
        super().__init__(message)
        for name, value in fields.items():
            setattr(self, name, value)


class APIConnectionError(ProviderError):
    """Named as the openai and anthropic packages name theirs."""


class ContextOverflowError(ProviderError):
    """Named as langchain-core names its own."""


def http_error(status: int, text: str = "no", **headers: str) -> httpx.HTTPStatusError:
    """An error as httpx raises it."""
    response = httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return httpx.HTTPStatusError(text, request=httpx.Request("POST", "http://x.test"), response=response)


def botocore_error(status: int) -> ProviderError:
    """An error as botocore raises it."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": {"Retry-After": "4"}}
    return ProviderError(response={"ResponseMetadata": metadata})


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        (ProviderError(status_code=429), 429, True),
        (ProviderError(status_code=400), 400, False),
        (ProviderError(status_code=401), 401, False),
        (ProviderError(http_status=503), 503, True),
        (ProviderError(code=500), 500, True),
        (ProviderError(code="invalid_request"), None, False),
        (ProviderError("insufficient_quota: pay", status_code=429), 429, False),
        (http_error(529), 529, True),
        (http_error(404), 404, False),
        (http_error(501), 501, False),
        (http_error(409), 409, True),
        (botocore_error(429), 429, True),
        (ProviderError(response={"Error": "odd"}), None, False),
        (TimeoutError("slow"), None, True),
        (ConnectionRefusedError("closed"), None, True),
        (httpx.ReadTimeout("slow"), None, True),
        (APIConnectionError("gone"), None, True),
        (ProviderError(is_retryable=True), None, True),
        (ValueError("odd"), None, False),
    ],
)
def test_errors_are_told_apart(error: Exception, status: int | None, retryable: bool) -> None:
    """Whether trying again may help is read from the status, or from the kind of the error."""
    told = model_error(error)
    assert type(told) is ModelError
    assert (told.status, told.retryable) == (status, retryable)
    assert str(error) in str(told)


@pytest.mark.parametrize(
    ("error", "wait_seconds"),
    [
        (http_error(429, retry_after="7"), 7),
        (http_error(429, retry_after_ms="1500", retry_after="2"), 1.5),
        (http_error(429, retry_after="-1"), 0),
        (http_error(429, retry_after="soon"), None),
        (http_error(429, retry_after="inf"), None),
        (http_error(429), None),
        (ProviderError(headers={"Retry-After": 3}, status_code=429), 3),
        (botocore_error(429), 4),
        (ProviderError(status_code=429), None),
    ],
)
def test_the_wait_that_is_asked_for_is_told(error: Exception, wait_seconds: float | None) -> None:
    """A `Retry-After` header is found wherever the provider's package keeps the response."""
    assert model_error(error).retry_after_seconds == wait_seconds


def test_a_wait_can_be_a_date() -> None:
    """A `Retry-After` date is turned into the seconds until then."""
    for usegmt in (True, False):
        date = email.utils.formatdate(time.time() + 100, usegmt=usegmt)
        wait_seconds = model_error(http_error(429, retry_after=date)).retry_after_seconds
        assert wait_seconds is not None
        assert 0 < wait_seconds <= 100


def test_wrapped_errors_are_looked_into() -> None:
    """An integration that wraps its provider's error does not hide the status; a ring of causes ends."""
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = http_error(503, retry_after="2")
    wrapped.__cause__.__cause__ = wrapped
    told = model_error(wrapped)
    assert (told.status, told.retryable, told.retry_after_seconds) == (503, True, 2)


@pytest.mark.parametrize(
    "error",
    [
        ContextOverflowError("too much", status_code=400),
        http_error(400, "This model's maximum context length is 8192 tokens"),
        http_error(400, "prompt is too long: 210000 tokens > 200000 maximum"),
        http_error(413, "Request is too large"),
        ValueError("the request exceeds the available context size"),
    ],
)
def test_an_overflow_is_told(error: Exception) -> None:
    """A request that does not fit is an error of its own, and sending it again cannot help."""
    told = model_error(error)
    assert isinstance(told, ContextOverflow)
    assert not told.retryable


def test_a_rate_limit_on_tokens_is_no_overflow() -> None:
    """Too many tokens a minute is a matter of waiting."""
    assert type(model_error(http_error(429, "too many tokens per minute"))) is ModelError
