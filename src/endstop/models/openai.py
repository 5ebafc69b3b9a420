"""Any OpenAI-compatible chat-completions endpoint as a `Model`.

::

    model = OpenAIModel("gpt-4o-mini")  # OPENAI_API_KEY, and OPENAI_BASE_URL where it is set
    model = OpenAIModel("qwen2.5-coder", base_url="http://127.0.0.1:8080/v1", temperature=0)
    model = OpenAIModel.from_env()  # OPENAI_MODEL too

Where a server's own tool calls cannot be relied on, wrap the model: `SchemaTools(OpenAIModel(...))`.
"""

from __future__ import annotations

import math
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

import anyio
import httpx
from httpx_sse import EventSource, ServerSentEvent

from endstop._errors import ConfigError
from endstop.models._openai_answers import TurnDecoder
from endstop.models._openai_clients import LoopClients
from endstop.models._openai_codec import CAP_FIELDS, RequestEncoder, parse_json, to_json
from endstop.models._openai_errors import EndpointErrors

if TYPE_CHECKING:
    from types import TracebackType

    from endstop._errors import ModelError
    from endstop._messages import JsonObject, ModelTurn
    from endstop.models.base import ModelRequest, OnDelta

OPENAI_BASE_URL = "https://api.openai.com/v1"
"""Where requests go when neither `base_url=` nor the variable `OPENAI_BASE_URL` says otherwise."""

_DEFAULT_TIMEOUT_SECONDS = 600.0
_CONNECT_TIMEOUT_SECONDS = 10.0
_TRAIL_SECONDS = 2.0
"""How long the usage and the end of the stream are awaited after the end of the answer.

Without the usage tokens must be estimated, and only a stream that was read to its end leaves a connection behind.
"""

_OWN_FIELDS = frozenset({"model", "messages", "tools", "tool_choice", "response_format", "stream"})


class OpenAIModel:
    """A model behind an OpenAI-compatible chat-completions endpoint.

    `base_url` defaults to `OPENAI_BASE_URL`, else to OpenAI itself. `api_key` defaults to `OPENAI_API_KEY` where
    `base_url` is not given: a key from the environment is sent nowhere but where the environment, or its
    issuer, says. OpenAI itself needs a key, other servers may do without.

    `temperature` is sent where it is given; small local models call tools far more reliably at 0. `extra_body` holds
    further fields of every request, such as `{"seed": 7, "reasoning_effort": "low"}`. A `max_tokens` or
    `max_completion_tokens` in it is a ceiling of the answer's length (`None`: no ceiling), and names the field in which
    the cap of a request is sent. Otherwise OpenAI and Azure are sent the second, and other servers the first.

    `timeout_seconds` bounds the silence between two pieces of an answer, not the answer as a whole: that is
    what the limits of a run do. `stream=False` asks for whole answers; then there are no deltas.

    A client is made on the first request of each event loop and closed with that loop, so that one model serves any
    number of `run_sync` calls; `aclose()`, or `async with`, closes it earlier. It takes proxies and certificates from
    the environment, and no proxy for this machine. `http_client` brings one's own (with headers, another transport,
    a shared pool): it stays the caller's to close.

    Raises:
        ConfigError: a value cannot be used, or the key is missing.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        extra_body: JsonObject | None = None,
        timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS,
        stream: bool = True,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        if not model:
            raise ConfigError("model", model, "name a model, such as 'gpt-4o-mini'")
        if not 0 < timeout_seconds < math.inf:
            raise ConfigError("timeout_seconds", timeout_seconds, "a number of seconds above 0")
        if base_url is None:
            base_url = os.environ.get("OPENAI_BASE_URL") or OPENAI_BASE_URL
            api_key = api_key or os.environ.get("OPENAI_API_KEY")
        url, key = _checked_url(base_url), _checked_key(api_key)
        if key is None and http_client is None and url.host == httpx.URL(OPENAI_BASE_URL).host:
            raise ConfigError("api_key", None, "OpenAI needs one: pass api_key= or set OPENAI_API_KEY")
        self._model = model
        self._shown_url = str(url.copy_with(username=None, password=None, query=None))
        self._url = url.copy_with(path=url.path.rstrip("/") + "/chat/completions")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, _CONNECT_TIMEOUT_SECONDS))
        self._timeout_seconds = timeout_seconds
        self._errors = EndpointErrors(self._shown_url, key)
        fields = _checked_fields(temperature, extra_body, stream=stream)
        self._encoder = RequestEncoder(model, fields, cap_field=_cap_field(url.host))
        self._client = http_client
        self._clients = LoopClients(url)

    @classmethod
    def from_env(
        cls,
        *,
        temperature: float | None = None,
        extra_body: JsonObject | None = None,
        timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS,
        stream: bool = True,
    ) -> Self:
        """The model that `OPENAI_MODEL` names, at `OPENAI_BASE_URL`, with `OPENAI_API_KEY`.

        Raises:
            ConfigError: `OPENAI_MODEL` is not set, or a value cannot be used.
        """
        model = os.environ.get("OPENAI_MODEL")
        if not model:
            raise ConfigError(
                "OPENAI_MODEL", model, "set this variable to the name of a model that the endpoint serves"
            )
        return cls(
            model, temperature=temperature, extra_body=extra_body, timeout_seconds=timeout_seconds, stream=stream
        )

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, base_url={self._shown_url!r})"

    @property
    def name(self) -> str:
        """The model's name, as it was given."""
        return self._model

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answer the request, once.

        Raises:
            ModelError: the endpoint could not be reached, refused, or broke off. Connection trouble, 408, 409, 429 and
                server errors are `retryable`; `retry_after_seconds` is what the endpoint asked for.
            ContextOverflow: the endpoint said that the request does not fit into the model's context.
        """
        client = self._client or await self._clients.get()
        body = self._encoder.encode(request)
        sent = client.build_request("POST", self._url, content=body, headers=self._headers, timeout=self._timeout)
        try:
            response = await client.send(sent, stream=True)
            try:
                return await self._read(response, on_delta)
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            raise self._translated(error) from error

    async def aclose(self) -> None:
        """Close the connections of this event loop; the model can be used again afterwards."""
        await self._clients.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _read(self, response: httpx.Response, on_delta: OnDelta) -> ModelTurn:
        if not response.is_success:
            raise self._errors.of_response(response.status_code, response.headers, await response.aread())
        decoder = TurnDecoder(self._model)
        content_type = response.headers.get("content-type", "").lower()
        if "text/event-stream" in content_type:
            await self._read_events(response, decoder, on_delta)
            return decoder.turn()
        body = await response.aread()
        answer = _parse_object(body) or {}
        if answer.get("error"):
            raise self._errors.of_payload(answer)
        decoder.feed(answer)
        if not decoder.complete:
            raise self._errors.of_body(content_type, body)
        return decoder.turn()

    async def _read_events(self, response: httpx.Response, decoder: TurnDecoder, on_delta: OnDelta) -> None:
        response.encoding = "utf-8"
        try:
            with anyio.CancelScope() as scope:
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        if event.data == "[DONE]":
                            decoder.complete = True
                        elif event.data:
                            for delta in decoder.feed(self._chunk(event)):
                                await on_delta(delta)
                        if decoder.complete and scope.deadline == math.inf:
                            scope.deadline = anyio.current_time() + _TRAIL_SECONDS
        except httpx.RequestError:
            # What came after the end of the answer does not matter.
            if not decoder.complete:
                raise
        if not decoder.complete:
            raise self._errors.of_transport("ended its stream in the middle of the answer")

    def _chunk(self, event: ServerSentEvent) -> JsonObject:
        chunk = _parse_object(event.data)
        if event.event == "error" or (chunk and chunk.get("error")):
            raise self._errors.of_payload(chunk or event.data)
        if chunk is None:
            raise self._errors.of_transport(f"sent an event that is no JSON object: {event.data[:200]!r}")
        return chunk

    def _translated(self, error: httpx.RequestError) -> ModelError:
        said = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return self._errors.of_transport(
                f"could not be reached: {said} (is base_url= right, and the server running?)"
            )
        if isinstance(error, httpx.TimeoutException):
            return self._errors.of_transport(
                f"sent nothing for {self._timeout_seconds:g} s (timeout_seconds= is the bound)"
            )
        final = isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol | httpx.TooManyRedirects)
        return self._errors.of_transport(f"broke off: {said}", retryable=not final)


def _parse_object(text: str | bytes) -> JsonObject | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _cap_field(host: str) -> str:
    issuer = host == httpx.URL(OPENAI_BASE_URL).host or host.endswith(".openai.azure.com")
    return "max_completion_tokens" if issuer else "max_tokens"


def _checked_url(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        shown = base_url.rpartition("@")[2]
        raise ConfigError("base_url", shown, "give an http or https URL, such as 'http://127.0.0.1:8080/v1'")
    return url


def _checked_key(api_key: str | None) -> str | None:
    """The key without the white space that files and variables bring along."""
    key = (api_key or "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("api_key", "***", "a key is printable ASCII without spaces")
    return key or None


def _checked_fields(temperature: float | None, extra_body: JsonObject | None, *, stream: bool) -> JsonObject:
    """The fields of every request."""
    if temperature is not None and (isinstance(temperature, bool) or not 0 <= temperature < math.inf):
        raise ConfigError("temperature", temperature, "a number from 0 up")
    extra = extra_body or {}
    if taken := sorted(_OWN_FIELDS & extra.keys()):
        raise ConfigError("extra_body", taken, "these fields come from the request, or have a parameter of their own")
    for name in CAP_FIELDS:
        ceiling = extra.get(name)
        if ceiling is not None and (not isinstance(ceiling, int) or ceiling < 1):
            raise ConfigError(f"extra_body[{name!r}]", ceiling, "a number of tokens above 0, or None")
    try:
        to_json(extra)
    except (TypeError, ValueError) as error:
        raise ConfigError("extra_body", extra, f"give JSON values ({error})") from error
    fields: JsonObject = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    if temperature is not None:
        fields["temperature"] = temperature
    return fields | extra
