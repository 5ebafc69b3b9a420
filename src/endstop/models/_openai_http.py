"""A small HTTP/1.1 transport for httpx, on h11 and anyio.

httpx's own transport passes each read and write through locks and layers for HTTP/2, proxies, retries and pool
limits. A model request needs none of them, and without them it takes about two thirds of the CPU.
"""

from __future__ import annotations

import selectors
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import h11
import httpx
from anyio.abc import SocketAttribute

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator

    from anyio.abc import ByteStream

_Origin: TypeAlias = tuple[str, str, int | None]
"""Scheme, host and port."""

_MAX_HEAD_BYTES = 100 * 1024
_READ_BYTES = 64 * 1024

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""The cheapest that takes any descriptor; Windows has no poll, and its select takes any."""


class DirectTransport(httpx.AsyncBaseTransport):
    """Sends each request over a connection of its own, which the next request may use when the answer was read whole.

    `tls` makes the context for https. Of each origin at most `max_idle` connections are kept, each for `idle_seconds`:
    most servers keep theirs for 5 s or longer. Errors are those of httpx, and so are the timeouts.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext], *, idle_seconds: float = 4.0, max_idle: int = 100) -> None:
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._max_idle = max_idle
        self._idle: dict[_Origin, list[_Connection]] = {}
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and read the head of its answer."""
        origin = (request.url.scheme, request.url.raw_host.decode("ascii"), request.url.port)
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        body = await request.aread()
        connection = await self._take(origin) or await self._connect(origin, timeouts.get("connect"))
        try:
            with _translated(httpx.WriteTimeout, httpx.WriteError):
                await connection.send(request, body, timeouts.get("write"))
            with _translated(httpx.ReadTimeout, httpx.ReadError):
                head = await connection.receive_head(timeouts.get("read"))
        except BaseException:
            await connection.aclose()
            raise
        stream = _Body(connection, timeouts.get("read"), partial(self._release, origin))
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=stream)

    async def aclose(self) -> None:
        """Close the idle connections; those in use are closed with their answers."""
        self._closed = True
        idle, self._idle = self._idle, {}
        for connection in [each for connections in idle.values() for each in connections]:
            await connection.aclose()

    async def _take(self, origin: _Origin) -> _Connection | None:
        """The idle connection that was used last, if it is still good; others are closed."""
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            await connection.aclose()
        return None

    async def _release(self, origin: _Origin, connection: _Connection) -> None:
        """Take a connection back, or close it where it cannot be used again; the oldest idle ones make room."""
        if self._closed or not connection.rest(self._idle_seconds):
            await connection.aclose()
            return
        idle = self._idle.setdefault(origin, [])
        idle.append(connection)
        while idle and (len(idle) > self._max_idle or idle[0].is_expired()):
            await idle.pop(0).aclose()

    async def _connect(self, origin: _Origin, timeout_seconds: float | None) -> _Connection:
        scheme, host, port = origin
        with _translated(httpx.ConnectTimeout, httpx.ConnectError), anyio.fail_after(timeout_seconds):
            if scheme == "https":
                # Without the closing handshake, which many servers leave out: the framing of HTTP shows a cut answer.
                stream: ByteStream = await anyio.connect_tcp(
                    host, port or 443, ssl_context=self._tls(), tls_standard_compatible=False
                )
            else:
                stream = await anyio.connect_tcp(host, port or 80)
        return _Connection(stream)


class _Connection:
    """A connection, and where the conversation on it stands."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._idle_until = 0.0

    async def send(self, request: httpx.Request, body: bytes, timeout_seconds: float | None) -> None:
        """Send a request, head and body in one piece."""
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        pieces = [self._protocol.send(event) for event in (head, h11.Data(data=body), h11.EndOfMessage())]
        try:
            with anyio.fail_after(timeout_seconds):
                await self._stream.send(b"".join(piece for piece in pieces if piece))
        except anyio.BrokenResourceError:
            # A server that refuses a request may close before it has read all of it: its answer is still to be read.
            pass

    async def receive_head(self, timeout_seconds: float | None) -> h11.Response:
        """The head of the answer."""
        while True:
            event = await self.receive(timeout_seconds)
            if isinstance(event, h11.Response):
                return event

    async def receive(self, timeout_seconds: float | None) -> object:
        """What comes next in the answer: an event of h11."""
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self._read(timeout_seconds))
        return event

    async def _read(self, timeout_seconds: float | None) -> bytes:
        data = b""
        with anyio.move_on_after(timeout_seconds) as scope:
            try:
                data = await self._stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                if self._protocol.their_state is h11.SEND_RESPONSE:
                    raise h11.RemoteProtocolError("the server closed the connection without an answer") from None
        if scope.cancelled_caught:
            raise TimeoutError
        return data

    def is_expired(self) -> bool:
        """Whether a connection has been idle for too long."""
        return anyio.current_time() > self._idle_until

    def is_usable(self) -> bool:
        """Whether an idle connection can take another request: it is not expired, and the server has not closed it."""
        if self.is_expired():
            return False
        with _Selector() as selector:
            selector.register(self._stream.extra(SocketAttribute.raw_socket).fileno(), selectors.EVENT_READ)
            return not selector.select(0)

    def rest(self, seconds: float) -> bool:
        """Whether the answer was read whole and the connection can wait for another request, for that long."""
        protocol = self._protocol
        if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
            return False
        protocol.start_next_cycle()
        self._idle_until = anyio.current_time() + seconds
        return True

    async def aclose(self) -> None:
        """Close at once, also where the task is cancelled."""
        await anyio.aclose_forcefully(self._stream)


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes; closing it releases its connection."""

    def __init__(
        self,
        connection: _Connection,
        timeout_seconds: float | None,
        release: Callable[[_Connection], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._release = release
        self._released = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated(httpx.ReadTimeout, httpx.ReadError):
            while isinstance(event := await self._connection.receive(self._timeout_seconds), h11.Data):
                yield bytes(event.data)

    async def aclose(self) -> None:
        """Release the connection, once."""
        if not self._released:
            self._released = True
            await self._release(self._connection)


@contextmanager
def _translated(timeout: type[httpx.TimeoutException], broken: type[httpx.NetworkError]) -> Generator[None]:
    """Errors of the layers below, as those of httpx."""
    try:
        yield
    except TimeoutError as error:
        raise timeout(str(error)) from error
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        raise broken(str(error)) from error
    except h11.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error)) from error
