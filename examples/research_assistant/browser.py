"""The browser of the assistant: a model looks a question up in a real Chromium, one action a step.

::

    with serve_pages() as address:
        browsed = BrowserAgent(model, start=address).browse("Which switch repeats best?", max_steps=12)

The loop is endstop's own agent, whose limits are the steps and the time: it ends honestly at either, and where the
pages lead in circles. What it does on the pages is `browser_walk`.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
from langchain_core.language_models import BaseChatModel

from endstop import Agent, ConfigError, Model, PlanLimits
from endstop.models.langchain import LangChainModel

from .ports import Browsed

try:
    from playwright.async_api import BrowserContext, Playwright, async_playwright
    from playwright.async_api import Error as PlaywrightError

    from .browser_walk import PAGE_SECONDS, PageError, Walk, origin_of
except ImportError as error:
    raise ImportError("The browser needs Playwright: pip install 'endstop[research]'") from error

MAX_SECONDS = 120.0
"""The time for one question, the answer included: twelve steps of ten seconds."""

CLOSE_SECONDS = 10.0
"""How long closing Chromium may take; what is left then ends with its driver."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
"""The names that Chromium is looked for by on the PATH."""

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    # Without this, scripts could send packets to anybody as a part of setting up a call.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)

INSTRUCTIONS = """\
You answer a question from the pages of a website. You know nothing about it yet: find the answer on the pages.
You are shown one page at a time, with its links and their numbers. First search for two words of the question, then \
open the best link by its number, then answer in one or two sentences with what that page says. If it does not say, \
open another link. Never repeat a call."""


class BrowserAgent:
    """Looks questions up on the pages of a site, from the address `start` on; each question has its own Chromium.

    The model is one of endstop, or a chat model of LangChain that can call tools. Only pages of the same origin may be
    visited, and of `allowed_origins`. `max_seconds` bounds the model's work on a question, `page_seconds` the opening
    of a page. Any number of questions may be looked up at once.

    Raises:
        ConfigError: an address is none of the web.
    """

    def __init__(
        self,
        model: Model | BaseChatModel,
        *,
        start: str,
        allowed_origins: Sequence[str] = (),
        max_seconds: float = MAX_SECONDS,
        page_seconds: float = PAGE_SECONDS,
    ) -> None:
        for address in (start, *allowed_origins):
            if not origin_of(address):
                raise ConfigError("start or allowed_origins", address, "use an address that begins with http or https")
        self._model = LangChainModel(model) if isinstance(model, BaseChatModel) else model
        self._start = start
        self._origins = frozenset(map(origin_of, (start, *allowed_origins)))
        self._max_seconds = max_seconds
        self._page_seconds = page_seconds

    def browse(self, question: str, *, max_steps: int) -> Browsed:
        """Look a question up, from a thread without an event loop; see `abrowse`."""
        return anyio.run(partial(self.abrowse, question, max_steps=max_steps))

    async def abrowse(self, question: str, *, max_steps: int) -> Browsed:
        """Look a question up in at most `max_steps` actions, opening the first page apart.

        Where the steps or the time run out, or the pages lead in a circle, the text is what was found by then, under
        a line that says so. Chromium is closed whatever happens.

        Raises:
            ConfigError: there is no Chromium, or it cannot be started.
            ModelError: the model's answer could not be had.
        """
        limits = PlanLimits(
            # The steps, a round to answer of its own accord, and the one that is held back for the last answer.
            max_model_rounds=max_steps + 2,
            max_tool_calls=max_steps,
            max_seconds=self._max_seconds,
            warn_model=True,
        )
        async with chromium(self._origins) as context:
            walk = Walk(await context.new_page(), self._origins, page_seconds=self._page_seconds)
            try:
                page = await walk.go(self._start)
            except PageError as error:
                return Browsed(text=f"[TRUNCATED: {error}; there is no answer]", sources=(), steps=0, truncated=True)
            agent = Agent(self._model, name="browser", instructions=INSTRUCTIONS, tools=walk.tools(), limits=limits)
            result = await agent.run(f"The browser shows this page:\n\n{page}\n\nThe question: {question}")
        return Browsed(
            text=str(result),
            sources=tuple(dict.fromkeys(walk.visited)),
            steps=result.spent.tool_calls,
            truncated=result.truncated,
        )


@asynccontextmanager
async def chromium(origins: Iterable[str]) -> AsyncGenerator[BrowserContext]:
    """A Chromium with a profile of its own that reaches these origins and nothing else; closed whatever happens.

    The origins are reached directly and all else by a proxy that never answers. So redirects, scripts and sockets
    are held to them as much as links are.

    Raises:
        ConfigError: there is no Chromium, or it cannot be started.
    """
    with socket.socket() as nobody:
        # Bound and not listening: whoever connects is refused, and nobody else can take the port.
        nobody.bind(("127.0.0.1", 0))
        proxy = f"--proxy-server=127.0.0.1:{nobody.getsockname()[1]}"
        # The first entry takes away that loopback is always direct.
        direct = "--proxy-bypass-list=" + ";".join(["<-loopback>", *sorted(origins)])
        # A start that is cut off halfway would leave processes or a profile that nobody clears away.
        with anyio.CancelScope(shield=True):
            driver = await async_playwright().start()
        try:
            with anyio.CancelScope(shield=True):
                context = await _launched(driver, [*FLAGS, proxy, direct])
            yield context
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await driver.stop()


async def _launched(driver: Playwright, flags: list[str]) -> BrowserContext:
    found = next(filter(None, map(shutil.which, (*CHROMIUM, driver.chromium.executable_path))), None)
    if found is None:
        raise ConfigError("chromium", None, "install it: apt-get install chromium, or playwright install chromium")
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    try:
        browser = await driver.chromium.launch(
            executable_path=found,
            args=flags,
            ignore_default_args=["--disable-popup-blocking"],
            chromium_sandbox=not is_root,
        )
        return await browser.new_context(accept_downloads=False, service_workers="block")
    except PlaywrightError as error:
        said = [line.partition("[err] ")[2] for line in error.message.splitlines() if "[err] " in line]
        why = " ".join(dict.fromkeys(said)) or error.message.partition("\n")[0]
        raise ConfigError("chromium", found, f"it does not start: {why[:500]}") from error
