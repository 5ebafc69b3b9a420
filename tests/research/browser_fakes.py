"""What the browser agent is tested with: a model that follows a script, and a site of pages that misbehave."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from endstop import ModelRequest, ModelTurn, ToolReturn
from endstop.models.scripted import ScriptedModel, call, forever, turn
from examples.research_assistant.browser import CHROMIUM

needs_chromium = pytest.mark.skipif(
    not any(map(shutil.which, CHROMIUM)), reason="Chromium is not installed: apt-get install chromium"
)


def act(action: str, **arguments: str | int) -> ModelTurn:
    """A turn that asks for one action."""
    return turn(calls=[call(action, arguments)])


def reader(*steps: str | ModelTurn, conclusion: str = "This is what I have found.") -> ScriptedModel:
    """A model that takes its steps in order and the last for ever, and draws its conclusion where it has no tools."""

    def step(taken: str | ModelTurn, request: ModelRequest) -> str | ModelTurn:
        return taken if request.tools else conclusion

    *once, last = [partial(step, taken) for taken in steps]
    return ScriptedModel([*once, forever(last)])


def shown(model: ScriptedModel) -> list[str]:
    """What the actions returned, as the model read it in the end."""
    return [message.content for message in model.requests[-1].messages if isinstance(message, ToolReturn)]


HUGE_CHARS = 5_000_000


class HardSite:
    """A site of misbehaving pages. `asked` are the paths that were asked for; `address` is its origin."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.address = ""
        self.other = ""
        self.closing = threading.Event()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        self.asked.append(request.path)
        page = getattr(self, "page_" + urlsplit(request.path).path.strip("/").replace("-", "_").replace(".", "_"), None)
        if page is None:
            return _send(request, "<h1>Nothing here</h1>", status=404)
        answer = page(request)
        return _send(request, answer) if answer is not None else None

    def page_(self, request: BaseHTTPRequestHandler) -> str:
        """The home page: a link to every other page."""
        names = sorted(n.removeprefix("page_").replace("_", "-") for n in dir(self) if n.startswith("page_"))
        links = "".join(f"<li><a href='/{name}'>{name}</a>" for name in names if name)
        return f"<title>Home</title><p>Choose.<ul>{links}<li><a href='{self.other}/secret'>elsewhere</a></ul>"

    def page_fine(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Fine</title><p>All is well."

    def page_huge(self, request: BaseHTTPRequestHandler) -> str:
        line = "<p>0123456789 and so on without an end, line after line.</p>\n"
        return "<title>Huge</title><h1>START</h1>" + line * (HUGE_CHARS // len(line)) + "<p>THE VERY END</p>"

    def page_long(self, request: BaseHTTPRequestHandler) -> str:
        return f"<title>Long</title><p>{'so it goes on ' * 300}THE END"

    def page_hang(self, request: BaseHTTPRequestHandler) -> None:
        self.closing.wait(60)

    def page_half(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/html")
        request.end_headers()
        request.wfile.write(b"<title>Half</title><p>The first half.")
        request.wfile.flush()
        self.closing.wait(60)

    def page_picture(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Picture</title><p>Words beside a picture.<img src='/hang'>"

    def page_broken(self, request: BaseHTTPRequestHandler) -> bytes:
        return (
            b"<html><titel>x</i><table><td><a href='/fine'>fi<b>ne</table></a><p>Still \xff\xfe\x00 read<div <<<!-- \0"
        )

    def page_umlaut(self, request: BaseHTTPRequestHandler) -> None:
        body = "<title>Größe</title><p>Maß: 5 µm, naïve café".encode("latin-1")
        _send(request, body, kind="text/html; charset=iso-8859-1")

    def page_emoji(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>絵文字</title><p>x" + "🛑" * 4_000 + "<a href='/fine'>次へ</a>"

    def page_download(self, request: BaseHTTPRequestHandler) -> None:
        _send(request, b"\0" * 1000, kind="application/octet-stream")

    def page_dialogs(self, request: BaseHTTPRequestHandler) -> str:
        return (
            "<title>Dialogs</title><p id=p>Before.<script>onbeforeunload = () => 'stay';"
            "alert(1); p.textContent = `${confirm(2)} ${prompt(3)}`; print()</script>"
        )

    def page_popups(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Popups</title><p>Buy!<script>setInterval(() => open('/fine'), 20); open('/hang')</script>"

    def page_spin(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Spin</title><p>Round and round.<script>for (;;);</script>"

    def page_spin_later(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Later</title><p>Calm at first.<script>setTimeout(() => { for (;;); }, 1500)</script>"

    def page_away(self, request: BaseHTTPRequestHandler) -> None:
        _redirect(request, f"{self.other}/secret")

    def page_away_by_script(self, request: BaseHTTPRequestHandler) -> str:
        return f"<title>Bye</title><p>Bye.<script>location = '{self.other}/secret'</script>"

    def page_away_by_meta(self, request: BaseHTTPRequestHandler) -> str:
        return f"<title>Bye</title><meta http-equiv=refresh content='0;url={self.other}/secret'><p>Bye."

    def page_calls_out(self, request: BaseHTTPRequestHandler) -> str:
        return (
            f"<title>Calls</title><p>Calling.<img src='{self.other}/secret'><iframe src='{self.other}/secret'></iframe>"
            f"<script>fetch('{self.other}/secret', {{mode: 'no-cors'}}); navigator.sendBeacon('{self.other}/secret');"
            f"new WebSocket('{self.other}/secret'.replace('http', 'ws'))</script>"
        )

    def page_round(self, request: BaseHTTPRequestHandler) -> None:
        _redirect(request, "/round")

    def page_moved(self, request: BaseHTTPRequestHandler) -> None:
        _redirect(request, "/fine")

    def page_moved_by_script(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Moving</title><p>Moving.<script>location.replace('/fine')</script>"

    def page_reloads(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Reloads</title><p>Again.<script>location.reload()</script>"

    def page_links(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Links</title>" + "".join(f"<a href='/fine?{n}'>number {n}</a> " for n in range(500))

    def page_odd_links(self, request: BaseHTTPRequestHandler) -> str:
        return (
            "<title>Odd</title><a href='javascript:alert(1)'>script</a> <a href='file:" + "///etc/passwd'>file</a>"
            "<a href='mailto:a@b.c'>mail</a> <a style='display:none' href='/fine'>hidden</a>"
            "<a href='/fine' target=_blank><img alt=x></a> <a href='http://[broken'>broken</a> <a href='/fine'>good</a>"
        )

    def page_form(self, request: BaseHTTPRequestHandler) -> str:
        return (
            "<title>Form</title><form action='/results?x=1'><label>Find <input name=q></label>"
            "<input type=hidden name=action value=go><input type=hidden name=method value=post></form>"
        )

    def page_form_of_a_script(self, request: BaseHTTPRequestHandler) -> str:
        return (
            "<title>Script</title><form id=f><input id=i aria-label='Filter'></form><p id=p></p>"
            "<script>f.onsubmit = (e) => {"
            " e.preventDefault(); setTimeout(() => p.textContent = `Only ${i.value}`, 50) }</script>"
        )

    def page_form_to_order(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Shop</title><form method=post action='/order'><input name=article placeholder='Order'></form>"

    def page_form_of_letters(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Letters</title><form action='/results'><input name=q required pattern='[a-z]+'></form>"

    def page_results(self, request: BaseHTTPRequestHandler) -> str:
        return f"<title>Results</title><p>{parse_qs(urlsplit(request.path).query)}"

    def page_order(self, request: BaseHTTPRequestHandler) -> str:
        return "<title>Ordered</title>"

    def page_traps(self, request: BaseHTTPRequestHandler) -> str:
        return (
            "<title>Traps</title><img name=title><form name=body><input name=innerText></form><p>Caught?"
            "<script>Array.prototype.map = () => 7; document.querySelectorAll = null</script>"
        )


def _send(request: BaseHTTPRequestHandler, body: bytes | str, *, status: int = 200, kind: str = "") -> None:
    data = body.encode() if isinstance(body, str) else body
    request.send_response(status)
    request.send_header("Content-Type", kind or "text/html; charset=utf-8")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)


def _redirect(request: BaseHTTPRequestHandler, address: str) -> None:
    request.send_response(302)
    request.send_header("Location", address)
    request.end_headers()


@contextmanager
def hard_site() -> Generator[tuple[HardSite, HardSite]]:
    """The site, and another one that may not be visited; both served while the block runs."""
    site, other = HardSite(), HardSite()
    with _served(other), _served(site):
        site.other = other.address
        yield site, other


@contextmanager
def _served(site: HardSite) -> Generator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A browser that hangs up in the middle is no error here."""

    with Server(("127.0.0.1", 0), Handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            site.closing.set()
            server.shutdown()
            thread.join()
