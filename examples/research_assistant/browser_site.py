"""The pages that come with the browser agent, served on this machine."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from endstop.models.scripted import ScriptedModel, call, forever, turn

PAGES = Path(__file__).with_name("browser_pages")
"""A small site: a home page with a search form, articles, a list over three pages, and two that lead in a circle."""


@contextmanager
def serve_pages(folder: Path = PAGES) -> Generator[str]:
    """The address of a folder of pages, served on a free port of the loopback interface while the block runs."""
    handler = partial(_QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="browser pages")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/index.html"
        finally:
            server.shutdown()
            thread.join()


def scripted_reader() -> ScriptedModel:
    """A model that walks these pages without a real one, to what they say about wires that come off."""
    return ScriptedModel(
        [
            forever(
                turn(calls=[call("open_link", {"link": "Articles"})]),
                turn(calls=[call("open_link", {"link": "The wire test"})]),
                "The wire test unplugged the wires of a running mill: with normally closed contacts it stopped in 50 "
                "of 50 runs, with normally open ones it never did. The club note was not tested on a running machine.",
            )
        ]
    )


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the assistant's."""
