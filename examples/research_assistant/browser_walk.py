"""The way of the browser agent through the pages of one question, and the actions that its model may choose."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

import anyio
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, Request
from playwright.async_api import TimeoutError as PlaywrightTimeout
from pydantic import BaseModel, BeforeValidator, Field

from endstop import Tool, ToolContext, tool

PAGE_SECONDS = 10.0
"""How long a page may take to open and to be read."""

PAGE_CHARS = 3_000
"""How much text of a page is shown at once, about 800 tokens: twelve pages are some 10,000."""

PAGE_LINKS = 40
"""How many links of a page are shown."""

SETTLE_SECONDS = 1.0
"""How long pictures and scripts are waited for once the page itself is there."""

CLOSE_SECONDS = 2.0
"""How long closing a tab may take; Chromium closes what is left."""

IN_PAGE = Path(__file__).with_name("browser_page.js").read_text(encoding="utf-8")
"""What is done inside a page."""

LinkName: TypeAlias = Annotated[str, BeforeValidator(str), Field(max_length=80)]
"""The number or the text of a link."""

Words: TypeAlias = Annotated[str, Field(max_length=80)]
"""A few words to search for."""

_PORTS = {"http": 80, "https": 443}


class PageError(Exception):
    """An action could not be done, and why, for the model. The browser is where it was."""


class Seen(BaseModel):
    """What a page shows, as it comes out of the browser."""

    title: str
    text: str
    length: int
    links: list[tuple[str, str]]
    more_links: int
    search_field: str | None


class Walk:
    """Where the agent is, the way it came, and the actions that lead on.

    Every page is opened in a tab of its own, which takes the place of the last one only when it has been read: a
    page that fails, hangs or is refused leaves everything as it was.
    """

    def __init__(self, tab: Page, origins: frozenset[str], *, page_seconds: float) -> None:
        self.page_seconds = page_seconds
        self.visited: list[str] = []
        self._tab = tab
        self._origins = origins
        self._links: list[tuple[str, str]] = []
        self._way: list[str] = []
        self._part = 1
        self._last_round = 0

    def tools(self) -> list[Tool]:
        """The actions. A model may do one a round, because the next depends on the page that it leads to."""
        actions = (self.open_link, self.search, self.read_on, self.back)
        return [replace(tool(read_only=True)(action), refusal=self._second_action) for action in actions]

    async def open_link(self, link: LinkName) -> str:
        """Opens a link of this page, by its number or its text."""
        wanted = link.strip(" []\"'.").casefold()
        numbers = [address for number, (_, address) in enumerate(self._links, start=1) if str(number) == wanted]
        exact = [address for label, address in self._links if label.casefold() == wanted]
        alike = [address for label, address in self._links if wanted and wanted in label.casefold()]
        found = [*numbers, *exact, *alike]
        if not found:
            raise PageError(f"this page has no link {wanted!r}")
        return await self.go(found[0])

    async def search(self, words: Words) -> str:
        """Types words into the search field of this page and sends it."""
        with self._in_time():
            address = await self._tab.evaluate(IN_PAGE, ["search", words])
            if not address:
                await anyio.sleep(SETTLE_SECONDS)
        return await (self.go(str(address)) if address else self._read(1))

    async def read_on(self) -> str:
        """Shows the next part of a page whose text has several parts."""
        return await self._read(self._part + 1)

    async def back(self) -> str:
        """Goes back to the page before this one."""
        if len(self._way) < 2:
            raise PageError("there is no page before this one")
        page = await self.go(self._way[-2])
        del self._way[-2:]
        return page

    async def go(self, address: str) -> str:
        """Open the page at an address and show it.

        Raises:
            PageError: it is not allowed, does not open, or takes too long.
        """
        self._check(address)
        with self._in_time():
            tab = left = await self._tab.context.new_page()
        try:
            seen = await self._open(tab, address)
            left, self._tab = self._tab, tab
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True), suppress(PlaywrightError):
                await left.close()
        self._way.append(tab.url)
        self.visited.append(tab.url)
        return self._shown(seen, 1)

    async def _read(self, part: int) -> str:
        with self._in_time():
            seen = await self._look(self._tab, part)
        return self._shown(seen, part)

    async def _open(self, tab: Page, address: str) -> Seen:
        hops = [address]
        tab.on("request", lambda request: hops.append(request.url) if _leads_on(request) else None)
        tab.on("popup", Page.close)
        try:
            with self._in_time():
                answer = await tab.goto(address, wait_until="domcontentloaded", timeout=0)
                if answer is not None and answer.status >= 400:
                    raise PageError(f"{address} answers with the HTTP status {answer.status}")
                await _settled(tab)
                seen = await self._look(tab, 1)
        except PageError:
            self._check(hops[-1])
            raise
        self._check(hops[-1])
        return seen

    async def _look(self, tab: Page, part: int) -> Seen:
        raw = await tab.evaluate(IN_PAGE, ["look", (part - 1) * PAGE_CHARS, PAGE_CHARS, PAGE_LINKS])
        return Seen.model_validate(raw)

    def _shown(self, seen: Seen, part: int) -> str:
        """A page as the model reads it; the numbers of the links are those that it may open."""
        parts = max(1, -(-seen.length // PAGE_CHARS))
        if part > parts:
            raise PageError("the text of this page ends here; open one of its links, or go back")
        self._part, self._links = part, seen.links
        lines = [f"{seen.title or '(no title)'} - {self._tab.url}", seen.text or "(no text)"]
        if parts > 1:
            lines.append(f"[part {part} of {parts} of the text{'; read_on shows the next' * (part < parts)}]")
        if seen.search_field is not None:
            lines.append(f"Search field, for search: {seen.search_field}")
        if seen.links:
            lines.append("Links, for open_link:")
            lines += [f"{n}. {label}{self._mark(address)}" for n, (label, address) in enumerate(seen.links, start=1)]
        if seen.more_links:
            lines.append(f"({seen.more_links} more links are not shown)")
        return "\n".join(lines)

    def _mark(self, address: str) -> str:
        return "" if origin_of(address) in self._origins else " (another site, not allowed)"

    def _check(self, address: str) -> None:
        if origin_of(address) not in self._origins:
            raise PageError(f"{address} is not allowed: only pages of {', '.join(sorted(self._origins))} are")

    def _second_action(self, context: ToolContext[object]) -> str | None:
        if context.round == self._last_round:
            return "Not run: do one action at a time, and look at the page that it leads to."
        self._last_round = context.round
        return None

    @contextmanager
    def _in_time(self) -> Generator[None]:
        """Whatever goes wrong on a page, and a page that takes too long, as a `PageError`."""
        try:
            with anyio.fail_after(self.page_seconds):
                yield
        except TimeoutError as error:
            raise PageError(f"the page took longer than {self.page_seconds:g} seconds") from error
        except (PlaywrightError, ValueError) as error:
            raise PageError(re.sub(r"^Page\.\w+: (Error: )?", "", str(error)).partition("\n")[0]) from error


def origin_of(address: str) -> str:
    """The scheme, host and port of an address, the port always written; empty where it is none of the web."""
    parts = urlsplit(address)
    if parts.scheme not in _PORTS or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"


def _leads_on(request: Request) -> bool:
    """Whether a request takes the whole tab to another page."""
    return request.is_navigation_request() and request.frame.parent_frame is None


async def _settled(tab: Page) -> None:
    """Wait for what a page loads besides itself, but not for long."""
    with suppress(PlaywrightTimeout):
        await tab.wait_for_load_state("load", timeout=SETTLE_SECONDS * 1_000)
