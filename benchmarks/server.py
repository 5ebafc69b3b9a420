"""A fake OpenAI-compatible endpoint in a process of its own: `python -m benchmarks.server` prints its base URL.

The name of the model says what it does: `rounds-25` asks for a tool in 24 rounds and answers in the 25th, each time in
one write, and `pieces-2000` answers in 2,000 pieces, each written by itself. With `pieces-500-paced` they come one by
one, as from a model that is writing, and do not pile up at the client. It ends when its standard input is closed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.task import ANSWER, PIECE, TOOL, arguments, call_id, tokens

PACE_SECONDS = 0.0005
"""The pause between two pieces that come one by one."""


@contextmanager
def running() -> Generator[str]:
    """Start the server in a process of its own; its base URL is given."""
    command = [sys.executable, "-m", "benchmarks.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


class Answers(BaseHTTPRequestHandler):
    """Answers the requests that come over one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # What is written is collected, and sent by flush().
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer a request for a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = sum(message["role"] == "assistant" for message in body["messages"])
        kind, count, *pace = body["model"].split("-")
        asks = kind == "rounds" and number + 1 < int(count)
        if not body.get("stream"):
            self._whole(body["model"], number, asks)
        else:
            pieces = [PIECE] * int(count) if kind == "pieces" else [ANSWER]
            deltas = _call_deltas(number) if asks else [{"content": piece} for piece in pieces]
            pace_seconds = None if kind == "rounds" else PACE_SECONDS if pace else 0.0
            self._stream(body["model"], number, deltas, pace_seconds)

    def _whole(self, model: str, number: int, asks: bool) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": None if asks else ANSWER}
        if asks:
            function = {"name": TOOL, "arguments": json.dumps(arguments(number))}
            message["tool_calls"] = [{"id": call_id(number), "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": _finish(asks)}
        data = json.dumps(_envelope(model, "chat.completion", [choice], number)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, model: str, number: int, deltas: list[dict[str, Any]], pace_seconds: float | None) -> None:
        """Send a stream of events; with a pace each by itself."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        asks = "tool_calls" in deltas[0]
        for delta in [{"role": "assistant", "content": None if asks else ""}, *deltas]:
            self._event(_envelope(model, "chat.completion.chunk", [_choice(delta, None)], None))
            if pace_seconds is not None:
                self.wfile.flush()
                time.sleep(pace_seconds)
        self._event(_envelope(model, "chat.completion.chunk", [_choice({}, _finish(asks))], None))
        self._event(_envelope(model, "chat.completion.chunk", [], number))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def _call_deltas(number: int) -> list[dict[str, Any]]:
    """A tool call as a provider streams it: its name first, then its arguments in two pieces."""
    text = json.dumps(arguments(number))
    half = len(text) // 2
    first = {"index": 0, "id": call_id(number), "type": "function", "function": {"name": TOOL, "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in (text[:half], text[half:])]
    return [{"tool_calls": [call]} for call in (first, *rest)]


def _choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _finish(asks: bool) -> str:
    return "tool_calls" if asks else "stop"


def _envelope(model: str, kind: str, choices: list[Any], number: int | None) -> dict[str, Any]:
    """What stands around the choices; a usage is in it where the round is named."""
    usage = None
    if number is not None:
        asked, written = tokens(number)
        usage = {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
    return {
        "id": "chatcmpl-benchmark",
        "object": kind,
        "created": 1,
        "model": model,
        "system_fingerprint": "fp_benchmark",
        "choices": choices,
        "usage": usage,
    }


def main() -> None:
    """Serve until standard input is closed."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
