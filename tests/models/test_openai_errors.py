"""What providers say when something goes wrong, and what is made of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from endstop._errors import ContextOverflow, ModelError
from endstop.models._openai_errors import EndpointErrors

KEY = "sk-very-secret-key"
ERRORS = EndpointErrors("http://127.0.0.1:8080/v1", KEY)


def error_of(status: int, body: Any, headers: dict[str, str] | None = None) -> ModelError:
    """The error of a response; a body that is no bytes is sent as JSON."""
    return ERRORS.of_response(status, headers or {}, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "It broke", "type": "server_error", "code": None}}, "It broke"),
        ({"error": {"code": 500, "message": "It broke", "type": "server_error"}}, "It broke"),
        ([{"error": {"code": 400, "message": "It broke", "status": "INVALID_ARGUMENT"}}], "It broke"),
        ({"error": "It broke"}, "It broke"),
        ({"object": "error", "message": "It broke", "type": "BadRequestError", "code": 400}, "It broke"),
        ({"detail": "It broke"}, "It broke"),
        ({"detail": [{"loc": ["body"], "msg": "It broke"}]}, '[{"loc":["body"],"msg":"It broke"}]'),
        ({"error": {"message": "Provider error", "metadata": {"raw": "It broke"}}}, "Provider error: It broke"),
        (b"<html>\n  <h1>It broke</h1></html>", "<html> <h1>It broke</h1></html>"),
        (b'"It broke"', "It broke"),
        (b"", "no message"),
        ({}, "{}"),
        ([], "[]"),
        (7, "7"),
    ],
)
def test_the_providers_own_words(body: Any, said: str) -> None:
    """Whatever form an error object has, its message is shown; where it has none, its beginning."""
    assert str(error_of(400, body)) == f"the model endpoint http://127.0.0.1:8080/v1 answered 400: {said}"


def test_long_messages_are_cut() -> None:
    """Some providers send the whole request back."""
    assert len(str(error_of(400, {"error": {"message": "x" * 5000}}))) < 1200
    assert len(str(error_of(502, b"<html>" + b"x" * 5000))) < 400


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"}),
        (400, {"message": "too long", "code": "context_length_exceeded"}),
        (400, {"message": "too long", "type": "exceed_context_size_error", "code": 400}),
        (500, {"message": "Context size has been exceeded.", "type": "server_error", "code": 500}),
        (400, {"message": "The maximum context length is 4096, your request has 5000 input tokens.", "code": 400}),
        (422, {"message": "Requested tokens (5000) exceed context window of 2048"}),
        (400, {"message": "prompt is too long: 200001 tokens > 200000 maximum"}),
        (400, {"message": "input length and `max_tokens` exceed context limit"}),
        (400, {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}),
        (413, {"message": "your request exceeds the available context size"}),
    ],
)
def test_context_overflow_in_many_words(status: int, error: Any) -> None:
    """A request that is too long has an error of its own, since asking again is no help."""
    overflow = error_of(status, {"error": error})
    assert isinstance(overflow, ContextOverflow)
    assert (overflow.retryable, overflow.status) == (False, status)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Request too large: the context window limit per minute is exceeded"),
        (400, "max_tokens is too large: 99999. This model supports at most 16384 completion tokens"),
        (400, "Invalid value for 'context'"),
    ],
)
def test_what_is_no_context_overflow(status: int, message: str) -> None:
    """A rate limit and a wrong parameter are something else."""
    assert not isinstance(error_of(status, {"error": {"message": message}}), ContextOverflow)


@pytest.mark.parametrize(
    "message",
    [
        "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error",
        "The model produced output that does not match the expected peg-native format",
    ],
)
def test_output_that_the_server_cannot_parse_is_final(message: str) -> None:
    """llama.cpp says 500, but the same request would most likely fail again, and it is billed."""
    error = error_of(500, {"error": {"code": 500, "message": message, "type": "server_error"}})
    assert (error.retryable, error.status) == (False, 500)
    assert "SchemaTools" in str(error)


def test_a_quota_that_is_used_up_is_final() -> None:
    """It has the status of a rate limit, and waiting does not refill it."""
    error = error_of(
        429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, {"retry-after": "1"}
    )
    assert (error.retryable, error.retry_after_seconds) == (False, None)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    """In milliseconds, in seconds, or as a date; what makes no sense is no wish."""
    assert error_of(429, b"", headers).retry_after_seconds == seconds


def test_a_date_to_wait_for() -> None:
    """It is turned into the seconds that are left."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    seconds = error_of(503, b"", {"retry-after": date}).retry_after_seconds
    assert seconds is not None
    assert 3000 < seconds <= 3600


def test_remedies() -> None:
    """What most often causes a refusal is said with it."""
    assert "OPENAI_API_KEY" in str(error_of(401, b"no"))
    assert "api_key=" in str(error_of(403, b"no"))
    assert "model's name" in str(error_of(404, b"no"))
    assert "redirects to nowhere" in str(error_of(302, b""))


@pytest.mark.parametrize(
    ("payload", "retryable", "status"),
    [
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, True, 500),
        ({"error": {"message": "Slow down", "code": 429}}, True, 429),
        ({"error": {"message": "Bad grammar", "type": "invalid_request_error"}}, False, 400),
        ({"error": {"message": "Bad grammar", "code": 400}}, False, 400),
        ({"error": {"message": "x", "code": 7}}, True, 500),
        ({"error": True}, True, 500),
    ],
)
def test_errors_inside_an_answer(payload: Any, retryable: bool, status: int) -> None:
    """They name a status, or a type, or nothing: then it is the server's trouble."""
    error = ERRORS.of_payload(payload)
    assert (error.retryable, error.status) == (retryable, status)


def test_no_error_tells_the_key() -> None:
    """Wherever it would have come from."""
    body = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    errors = [
        error_of(401, body),
        error_of(400, f"<p>{KEY}</p>".encode()),
        error_of(301, b"", {"location": f"https://example.com/?key={KEY}"}),
        ERRORS.of_payload(body),
        ERRORS.of_body(f"text/html; {KEY}", KEY.encode()),
        ERRORS.of_transport(f"broke off: Bearer {KEY}"),
    ]
    assert not [error for error in errors if KEY in str(error) + repr(error)]
    assert all("***" in str(error) for error in errors)


def test_a_placeholder_is_no_secret() -> None:
    """Local servers take any key; hiding one letter would garble the message."""
    error = EndpointErrors("http://127.0.0.1/v1", "x").of_transport("exploded")
    assert str(error).endswith("exploded")
