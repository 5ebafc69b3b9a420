"""What an `OpenAIModel` is made of: its settings, its connections, and the event loops that it is used on."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from endstop._errors import ConfigError
from endstop._messages import UserMessage
from endstop.models.base import ModelRequest
from endstop.models.openai import OpenAIModel
from tests.models.fake_openai import ANSWER, ANSWERED, FakeOpenAI, Heard, events, message, stream, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-very-secret-key"
QUESTION = ModelRequest(messages=(UserMessage(content="Where is the switch?"),))


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    """A server without a script."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the machine are none of the tests' business."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


def at(server: FakeOpenAI, **options: Any) -> OpenAIModel:
    """A model behind the server."""
    return OpenAIModel("m", base_url=server.base_url, api_key=KEY, **options)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_model_on_several_event_loops(server: FakeOpenAI, backend: str) -> None:
    """Each loop has its own connections, closed when it ends, also where nobody closes the model."""
    model = at(server)
    for _ in range(3):
        server.replies += [stream(events(ANSWER)), stream(events(ANSWER))]

        async def main() -> None:
            assert await model.respond(QUESTION, Heard()) == ANSWERED
            assert await model.respond(QUESTION, Heard()) == ANSWERED

        before = server.connections
        anyio.run(main, backend=backend)
        assert server.connections == before + 1
        assert not model._clients._open
    gc.collect()  # A connection that nobody closed would be a warning here, and warnings are errors.


async def test_a_model_that_nobody_keeps_is_closed(server: FakeOpenAI) -> None:
    """Models made for one request do not leave their connections behind in a long-running loop."""
    server.replies.append(stream(events(ANSWER)))
    model = at(server)
    assert await model.respond(QUESTION, Heard()) == ANSWERED
    del model
    gc.collect()
    assert await anyio.to_thread.run_sync(server.client_left.wait, 10)


async def test_a_closed_model_opens_again(server: FakeOpenAI) -> None:
    """`aclose` closes connections, not the model; without any it does nothing."""
    model = at(server)
    await model.aclose()
    for _ in range(2):
        server.replies.append(stream(events(ANSWER)))
        assert await model.respond(QUESTION, Heard()) == ANSWERED
        await model.aclose()
    assert server.connections == 2


async def test_a_client_of_ones_own(server: FakeOpenAI) -> None:
    """Its headers are sent and its connections shared, and it stays open."""
    server.replies += [stream(events(ANSWER)), stream(events(ANSWER))]
    async with httpx.AsyncClient(trust_env=False, headers={"api-key": "azure"}) as client:
        for _ in range(2):
            async with OpenAIModel("m", base_url=server.base_url, http_client=client) as model:
                assert await model.respond(QUESTION, Heard()) == ANSWERED
        assert not client.is_closed
    assert server.connections == 1
    assert server.received[0].headers["api-key"] == "azure"
    assert "authorization" not in server.received[0].headers


async def test_proxies_are_for_other_machines(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on this machine is asked directly, others through the proxy that the environment names."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", server.base_url.removesuffix("/v1"))
    server.replies += [stream(events(ANSWER)), stream(events(ANSWER))]
    for base_url in (server.base_url, "http://model.example/v1"):
        async with OpenAIModel("m", base_url=base_url) as model:
            assert await model.respond(QUESTION, Heard()) == ANSWERED
    direct, proxied = server.received
    assert direct.path == "/v1/chat/completions"
    assert proxied.path == "http://model.example/v1/chat/completions"


async def test_many_requests_at_once(server: FakeOpenAI) -> None:
    """One model serves concurrent requests, each with its own answer."""
    server.replies += [whole(message(str(number))) for number in range(50)]
    answers: list[str] = []

    async def one(model: OpenAIModel) -> None:
        answers.append((await model.respond(QUESTION, Heard())).text)

    async with at(server) as model, anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(one, model)
    assert sorted(answers, key=int) == [str(number) for number in range(50)]


# -- settings ------------------------------------------------------------------------------------------


def test_the_environment_names_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_env` takes all three variables; the constructor takes what it is not given."""
    monkeypatch.setenv("OPENAI_MODEL", "env-model")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    model = OpenAIModel.from_env(temperature=0)
    assert repr(model) == "OpenAIModel('env-model', base_url='http://127.0.0.1:9/v1/')"
    assert model.name == "env-model"
    assert model._headers["authorization"] == f"Bearer {KEY}"
    assert str(model._url) == "http://127.0.0.1:9/v1/chat/completions"


def test_the_key_of_the_environment_goes_to_no_other_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address in the code is somebody else's than the key in the environment, for all that we know."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert "authorization" not in OpenAIModel("m", base_url="http://127.0.0.1:9/v1")._headers
    assert OpenAIModel("m")._headers["authorization"] == f"Bearer {KEY}"


def test_openai_itself_needs_a_key() -> None:
    """Better said before the first request than by a refusal; other servers may do without."""
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIModel("m")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIModel("m", base_url="https://api.openai.com/v1", api_key=" ")


def test_a_missing_model_is_named() -> None:
    """The variable is what has to be set."""
    with pytest.raises(ConfigError, match="OPENAI_MODEL=None cannot be used"):
        OpenAIModel.from_env()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"model": ""}, "model"),
        ({"base_url": "127.0.0.1:8080/v1"}, "base_url"),
        ({"base_url": "ftp://example.com"}, "base_url"),
        ({"base_url": "http://"}, "base_url"),
        ({"base_url": "http://user:pass@host:port/"}, "base_url"),
        ({"api_key": "two words"}, "api_key"),
        ({"api_key": "sk-\u00e9"}, "api_key"),
        ({"api_key": "sk\nsk"}, "api_key"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"extra_body": {"messages": [], "stream": True}}, "extra_body"),
        ({"extra_body": {"seed": object()}}, "extra_body"),
        ({"extra_body": {"max_tokens": 0}}, "extra_body['max_tokens']"),
        ({"extra_body": {"max_completion_tokens": "many"}}, "extra_body['max_completion_tokens']"),
    ],
)
def test_settings_that_cannot_be_used(options: dict[str, Any], field: str) -> None:
    """Refused before anything is sent, by name, and without telling a secret."""
    with pytest.raises(ConfigError) as caught:
        OpenAIModel(**{"model": "m", "base_url": "http://127.0.0.1:9", **options})
    assert caught.value.field == field
    assert options.get("api_key", "pass") not in str(caught.value)


def test_what_is_shown_of_a_model_tells_no_secret() -> None:
    """The address is shown without user, password and query."""
    model = OpenAIModel("m", base_url="http://user:pass@127.0.0.1:9/v1?key=s3cret", api_key=KEY)
    assert repr(model) == "OpenAIModel('m', base_url='http://127.0.0.1:9/v1')"
    assert str(model._url).endswith("/v1/chat/completions?key=s3cret")


@pytest.mark.parametrize(
    ("options", "cap", "sent"),
    [
        ({}, 50, {"max_tokens": 50}),
        ({}, None, {}),
        ({"extra_body": {"max_tokens": 20}}, 50, {"max_tokens": 20}),
        ({"extra_body": {"max_tokens": 80}}, 50, {"max_tokens": 50}),
        ({"extra_body": {"max_tokens": 80}}, None, {"max_tokens": 80}),
        ({"extra_body": {"max_completion_tokens": None}}, 50, {"max_completion_tokens": 50}),
        ({"extra_body": {"max_completion_tokens": None}}, None, {}),
    ],
)
async def test_the_cap_on_the_answer(server: FakeOpenAI, options: Any, cap: int | None, sent: dict[str, int]) -> None:
    """The lower of the request's cap and the caller's ceiling is sent, in the field that the server knows."""
    request = ModelRequest(messages=QUESTION.messages, max_output_tokens=cap)
    server.replies.append(whole(message("x")))
    await at(server, **options).respond(request, Heard())
    body = server.received[0].body
    assert {name: body[name] for name in body if name.startswith("max_")} == sent


@pytest.mark.parametrize(
    ("base_url", "field"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://openai.example.com/v1", "max_tokens"),
    ],
)
def test_the_name_of_the_cap_follows_the_endpoint(base_url: str, field: str) -> None:
    """OpenAI's reasoning models refuse the older name, and most other servers know no other."""
    model = OpenAIModel("m", base_url=base_url, api_key=KEY)
    request = ModelRequest(messages=QUESTION.messages, max_output_tokens=7)
    assert f'"{field}":7'.encode() in model._encoder.encode(request)
