"""An OpenAI-compatible endpoint on loopback that answers from a script, byte for byte.

It runs in threads of its own on plain sockets, so that a test can say what arrives, in which pieces and when, on any
event loop, and on several one after the other.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self, TypeAlias

from endstop._messages import ModelTurn, Usage
from endstop.models.base import Delta

Json: TypeAlias = Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server sends: bytes in pieces, with a pause for each number of seconds between them.

    Afterwards it goes on to the next request, closes the connection (`cut`), or waits until the client does (`hold`).
    """

    pieces: Sequence[bytes | float]
    cut: bool = False
    hold: bool = False


@dataclass(frozen=True, kw_only=True)
class Received:
    """A request as the server got it; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Json
    raw: bytes


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of a response."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body: bytes | Json, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A response in one piece: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    known = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    return Reply(pieces=[head(status, known), data])


def message(content: Json = None, *, finish: str = "stop", usage: Json = None, **more: Json) -> Json:
    """The JSON of a whole answer."""
    said = {"role": "assistant", "content": content, **more}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": usage,
    }


def chunk(*, finish: str | None = None, **delta: Json) -> Json:
    """The JSON of one chunk of a stream."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage_chunk(prompt: int, completion: int, cached: int = 0) -> Json:
    """The last chunk of a stream that reports its usage."""
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    return {"object": "chat.completion.chunk", "choices": [], "usage": usage}


def tool_call(*, name: str | None = None, arguments: str | None = None, **more: Json) -> Json:
    """A piece of a tool call, as it stands in a delta or a message."""
    return {
        **more,
        "function": {key: value for key, value in [("name", name), ("arguments", arguments)] if value is not None},
    }


def events(chunks: Iterable[Json], *, done: bool = True, newline: bytes = b"\n", ascii_only: bool = False) -> bytes:
    """The bytes of a stream of events."""
    texts = [json.dumps(value, ensure_ascii=ascii_only).encode() for value in chunks]
    return b"".join(b"data: " + text + newline * 2 for text in [*texts, *([b"[DONE]"] if done else [])])


def stream(data: bytes, *, at: Iterable[int] = (), cut: bool = False, hold: bool = False) -> Reply:
    """A streamed response whose bytes arrive in pieces, split at the given places; cut or held before its end."""
    places = sorted({0, len(data), *(min(place, len(data)) for place in at)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    start = head(200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"})
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return Reply(pieces=[start, *framed, *([] if cut or hold else [b"0\r\n\r\n"])], cut=cut, hold=hold)


@dataclass
class FakeOpenAI:
    """The server; a context manager. `replies` are used up in order, one for each request."""

    replies: list[Reply] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set when a request has come."""
    client_left: threading.Event = field(default_factory=threading.Event)
    """Set when a client has closed a connection."""

    def __enter__(self) -> Self:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def next_reply(self) -> Reply:
        """The reply to the request that just came."""
        return self.replies.pop(0) if self.replies else whole({"error": "the script is at its end"}, status=500)


class _Server(socketserver.ThreadingTCPServer):
    """Serves each connection in a thread, and can hang up on all of them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, fake: FakeOpenAI) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.fake = fake
        self.open: set[socket.socket] = set()

    def hang_up(self) -> None:
        for connection in list(self.open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed already


class _Connection(socketserver.StreamRequestHandler):
    """Answers the requests that come over one connection."""

    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)
        self.server.fake.connections += 1

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        super().finish()

    def handle(self) -> None:
        try:
            while (request := self._receive()) is not None:
                self.server.fake.received.append(request)
                self.server.fake.arrived.set()
                reply = self.server.fake.next_reply()
                self._send(reply)
                if reply.hold:
                    self._await_close()
                if reply.cut or reply.hold:
                    return
            self.server.fake.client_left.set()
        except OSError:
            pass  # the client, or the end of the test, closed the connection

    def _receive(self) -> Received | None:
        start = self.rfile.readline()
        if not start:
            return None
        headers: dict[str, str] = {}
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        raw = self.rfile.read(int(headers.get("content-length", "0")))
        return Received(path=start.split()[1].decode(), headers=headers, body=json.loads(raw), raw=raw)

    def _send(self, reply: Reply) -> None:
        for piece in reply.pieces:
            if isinstance(piece, bytes):
                self.connection.sendall(piece)
            else:
                time.sleep(piece)

    def _await_close(self) -> None:
        try:
            while self.connection.recv(4096):
                pass
        except ConnectionError:
            pass  # closed with a reset, which is closed too
        self.server.fake.client_left.set()


ANSWER = [
    chunk(role="assistant", content=""),
    chunk(content="At the "),
    chunk(content="énd ⏹"),
    chunk(finish="stop"),
    usage_chunk(9, 4, 2),
]
ANSWERED = ModelTurn(
    text="At the énd ⏹", model="m", usage=Usage(input_tokens=9, output_tokens=4, cached_input_tokens=2)
)
"""A streamed answer, and the turn that it is."""


class Heard(list[Delta]):
    """The deltas that a model gave."""

    async def __call__(self, delta: Delta) -> None:
        self.append(delta)

    def text(self) -> str:
        """The answer, joined."""
        return "".join(delta.text for delta in self if delta.kind == "text")
