"""The transport that requests take, against servers that do as they are told."""

from __future__ import annotations

import shutil
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener

from endstop.models._openai_http import DirectTransport, _Connection, _translated
from tests.models.fake_openai import FakeOpenAI, Reply, head, stream, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.both_backends


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    """A server without a script."""
    with FakeOpenAI() as fake:
        yield fake


def client(**options: Any) -> httpx.AsyncClient:
    """A client that uses the transport."""
    return httpx.AsyncClient(transport=DirectTransport(ssl.create_default_context, **options), timeout=10)


async def post(client: httpx.AsyncClient, server: FakeOpenAI) -> httpx.Response:
    """The answer to a request."""
    return await client.post(server.base_url + "/x?a=b", json={"a": 1}, headers={"x-a": "b"})


async def failure(server: FakeOpenAI, reply: Reply) -> httpx.TransportError:
    """The error that comes of a reply."""
    server.replies.append(reply)
    async with client() as sender:
        with pytest.raises(httpx.TransportError) as caught:
            await post(sender, server)
    return caught.value


async def test_a_request_and_its_answer(server: FakeOpenAI) -> None:
    """What is sent arrives, and what is answered comes back."""
    server.replies.append(whole({"ok": True}, status=418, headers={"X-B": "c"}))
    async with client() as sender:
        answer = await post(sender, server)
    assert (answer.status_code, answer.json(), answer.headers["x-b"]) == (418, {"ok": True}, "c")
    (received,) = server.received
    assert (received.path, received.body, received.headers["x-a"]) == ("/v1/x?a=b", {"a": 1}, "b")
    assert received.headers["host"] == server.base_url.removeprefix("http://").removesuffix("/v1")


async def test_a_connection_serves_one_request_after_the_other(server: FakeOpenAI) -> None:
    """Read to its end, an answer leaves its connection to the next request."""
    server.replies += [whole({}), stream(b"text", at=[1, 2]), whole({})]
    async with client() as sender:
        for _ in range(3):
            assert (await post(sender, server)).is_success
    assert server.connections == 1
    assert await anyio.to_thread.run_sync(server.client_left.wait, 10)


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {"Content-Length": "9"}])
async def test_a_connection_that_ends_with_its_answer(server: FakeOpenAI, headers: Mapping[str, str]) -> None:
    """The server may ask for that, and an answer that was not read leaves no choice."""
    server.replies += [Reply(pieces=[head(200, headers), b"{}"], cut=False), whole({})]
    async with client() as sender:
        async with sender.stream("POST", server.base_url, json={}) as answer:
            assert answer.is_success
        assert (await post(sender, server)).is_success
    assert server.connections == 2


async def test_a_connection_that_the_server_has_closed_is_not_used(server: FakeOpenAI) -> None:
    """It is seen before the request is sent, so that the request is not lost on it."""
    server.replies += [Reply(pieces=[*whole({}).pieces], cut=True), whole({})]
    async with client() as sender:
        assert (await post(sender, server)).is_success
        await anyio.sleep(0.05)
        assert (await post(sender, server)).is_success
    assert server.connections == 2


@pytest.mark.parametrize("options", [{"idle_seconds": -1}, {"max_idle": 0}])
async def test_idle_connections_are_bounded(server: FakeOpenAI, options: dict[str, Any]) -> None:
    """In number and in time."""
    server.replies += [whole({}), whole({})]
    async with client(**options) as sender:
        assert (await post(sender, server)).is_success
        assert await anyio.to_thread.run_sync(server.client_left.wait, 10)
        assert (await post(sender, server)).is_success
    assert server.connections == 2


async def test_an_expired_connection_is_not_used(server: FakeOpenAI) -> None:
    """The server may be about to close it."""
    server.replies += [whole({}), whole({})]
    async with client(idle_seconds=0.05) as sender:
        assert (await post(sender, server)).is_success
        await anyio.sleep(0.1)
        assert (await post(sender, server)).is_success
    assert server.connections == 2


async def test_requests_at_once_have_a_connection_each(server: FakeOpenAI) -> None:
    """No request waits for another; the connections are there for later ones."""
    server.replies += [Reply(pieces=[0.05, *whole({}).pieces]) for _ in range(8)] + [whole({})] * 8
    async with client() as sender:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(post, sender, server)
    assert server.connections == 8


async def test_a_client_that_is_closed_takes_no_connection_back(server: FakeOpenAI) -> None:
    """An answer that is read after that closes its own."""
    server.replies.append(stream(b"text"))
    sender = client()
    answer = await sender.send(sender.build_request("POST", server.base_url, json={}), stream=True)
    await sender.aclose()
    assert await answer.aread() == b"text"
    await answer.aclose()
    assert await anyio.to_thread.run_sync(server.client_left.wait, 10)


async def test_a_connection_is_given_back_once(server: FakeOpenAI) -> None:
    """Given back twice, it would serve two requests at the same time."""
    server.replies += [whole({}), Reply(pieces=[0.05, *whole({}).pieces]), Reply(pieces=[0.05, *whole({}).pieces])]
    async with client() as sender:
        answer = await post(sender, server)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        await answer.stream.aclose()
        async with anyio.create_task_group() as group:
            group.start_soon(post, sender, server)
            group.start_soon(post, sender, server)
    assert server.connections == 2


async def test_informational_answers_are_passed_over(server: FakeOpenAI) -> None:
    """They come before the answer."""
    server.replies.append(Reply(pieces=[head(103, {"Link": "</x>"}), *whole({"ok": True}).pieces]))
    async with client() as sender:
        assert (await post(sender, server)).json() == {"ok": True}


async def test_an_answer_that_ends_with_the_connection(server: FakeOpenAI) -> None:
    """Older servers give no length."""
    server.replies.append(Reply(pieces=[b"HTTP/1.0 200 OK\r\n\r\n", b"te", b"xt"], cut=True))
    async with client() as sender:
        assert (await post(sender, server)).text == "text"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(pieces=[], cut=True), httpx.RemoteProtocolError),
        (Reply(pieces=[b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], cut=True), httpx.RemoteProtocolError),
        (stream(b"half", cut=True), httpx.RemoteProtocolError),
        (Reply(pieces=[b"this is no HTTP\r\n\r\n"], cut=True), httpx.RemoteProtocolError),
        (Reply(pieces=[b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000], cut=True), httpx.RemoteProtocolError),
    ],
)
async def test_answers_that_are_broken(server: FakeOpenAI, reply: Reply, error: type[Exception]) -> None:
    """A cut answer is never taken for a whole one."""
    assert type(await failure(server, reply)) is error


async def test_silence(server: FakeOpenAI) -> None:
    """Before the answer and within it."""
    for reply in (Reply(pieces=[], hold=True), stream(b"half", hold=True)):
        server.replies.append(reply)
        async with client() as sender:
            with pytest.raises(httpx.ReadTimeout):
                await sender.post(server.base_url, json={}, timeout=httpx.Timeout(30, read=0.05))


async def test_a_server_that_reads_nothing() -> None:
    """Sending is bounded too."""

    async def wait(connection: ByteStream) -> None:
        async with connection:
            await anyio.sleep(10)

    async with listening(wait) as url, client() as sender:
        with pytest.raises(httpx.WriteTimeout):
            await sender.post(url, content=b"x" * 200_000_000, timeout=httpx.Timeout(30, write=0.1))


async def test_a_server_that_is_not_there() -> None:
    """Nobody listens."""
    with FakeOpenAI() as gone:
        pass
    async with client() as sender:
        with pytest.raises(httpx.ConnectError):
            await sender.post(gone.base_url)


async def test_a_request_that_is_no_http(server: FakeOpenAI) -> None:
    """What would not be understood is not sent."""
    async with client() as sender:
        with pytest.raises(httpx.LocalProtocolError):
            await sender.post(server.base_url, headers={"x-a": "line\nbreak"})


class Refusing(ByteStream):
    """A connection whose other side has answered and closed before it read the request."""

    async def send(self, item: bytes) -> None:
        raise anyio.BrokenResourceError

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"

    async def send_eof(self) -> None: ...

    async def aclose(self) -> None: ...


async def test_a_refusal_that_comes_before_the_request_is_sent() -> None:
    """What the server said is read all the same."""
    connection = _Connection(Refusing())
    await connection.send(httpx.Request("POST", "http://127.0.0.1/", content=b"large"), b"large", None)
    assert (await connection.receive_head(None)).status_code == 413


@pytest.mark.parametrize(
    ("error", "translated"),
    [
        (TimeoutError(), httpx.ConnectTimeout),
        (OSError("no route"), httpx.ConnectError),
        (ssl.SSLCertVerificationError("bad certificate"), httpx.ConnectError),
        (anyio.BrokenResourceError(), httpx.ConnectError),
        (anyio.ClosedResourceError(), httpx.ConnectError),
        (ZeroDivisionError(), ZeroDivisionError),
    ],
)
async def test_errors_of_the_layers_below(error: Exception, translated: type[Exception]) -> None:
    """They come as those of httpx; what is none of theirs stays."""
    with pytest.raises(translated), _translated(httpx.ConnectTimeout, httpx.ConnectError):
        raise error


@asynccontextmanager
async def listening(
    serve: Callable[[ByteStream], Awaitable[None]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A server on loopback that does this with each connection."""
    listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    if context is not None:
        listener = TLSListener(listener, context, standard_compatible=False)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{port}/"
        group.cancel_scope.cancel()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_https(tmp_path: Path) -> None:
    """The certificate is checked; a connection that is trusted is used again."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    await anyio.run_process(command)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    connections = 0

    async def serve(connection: ByteStream) -> None:
        nonlocal connections
        connections += 1
        async with connection:
            async for _ in connection:
                await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext")

    trusted = ssl.create_default_context(cafile=str(certificate))
    async with listening(serve, context) as url:
        async with httpx.AsyncClient(transport=DirectTransport(lambda: trusted)) as sender:
            for _ in range(2):
                assert (await sender.get(url)).text == "text"
        async with client() as sender:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await sender.get(url)
    assert connections == 1
