"""The browser agent's way over pages that misbehave, and the line that it does not cross to other sites."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import anyio
import pytest
from playwright.async_api import BrowserContext

from examples.research_assistant.browser import chromium
from examples.research_assistant.browser_walk import PAGE_CHARS, PAGE_LINKS, PageError, Walk, origin_of
from tests.research.browser_fakes import HardSite, hard_site, needs_chromium

pytestmark = needs_chromium

PATIENCE_SECONDS = 30.0
"""How long a slow machine may take for what takes a second; nothing waits for it to pass."""


@pytest.fixture(scope="module", name="sites")
def served_sites() -> Generator[tuple[HardSite, HardSite]]:
    """The site, and another one that may not be visited."""
    with hard_site() as both:
        yield both


@pytest.fixture(name="site")
def allowed_site(sites: tuple[HardSite, HardSite]) -> HardSite:
    """The site that may be visited."""
    return sites[0]


@pytest.fixture(scope="module", name="browser")
async def open_chromium(sites: tuple[HardSite, HardSite]) -> AsyncGenerator[BrowserContext]:
    """One Chromium for all tests of this module."""
    async with chromium([origin_of(sites[0].address)]) as context:
        yield context


@pytest.fixture(name="context")
async def chromium_without_tabs(browser: BrowserContext) -> AsyncGenerator[BrowserContext]:
    """The Chromium, in which each test opens its own tabs."""
    yield browser
    for page in browser.pages:
        with anyio.move_on_after(1):
            await page.close()


@pytest.fixture(name="walk")
async def walk_from_home(context: BrowserContext, site: HardSite) -> Walk:
    """A patient walk that stands on the home page."""
    origins = frozenset({origin_of(site.address)})
    walk = Walk(await context.new_page(), origins, page_seconds=PATIENCE_SECONDS)
    await walk.go(site.address)
    return walk


@contextmanager
def impatient(walk: Walk) -> Generator[None]:
    """Two seconds for a page, and then a complaint."""
    walk.page_seconds = 2
    with pytest.raises(PageError, match="the page took longer than 2 seconds"):
        yield
    walk.page_seconds = PATIENCE_SECONDS


async def assert_still_home(walk: Walk) -> None:
    """What failed has left the walk where it was, and it goes on from there."""
    assert (await walk.open_link("fine")).startswith("Fine - ")
    assert (await walk.back()).startswith("Home - ")


# Other sites


@pytest.mark.parametrize("page", ["elsewhere", "away", "away-by-script", "away-by-meta"])
async def test_no_way_leads_to_another_site(walk: Walk, sites: tuple[HardSite, HardSite], page: str) -> None:
    """A link, a redirect, a script: the other site is not even asked, and the model is told that it may not go."""
    site, other = sites
    with pytest.raises(PageError, match="is not allowed: only pages of") as refused:
        await walk.open_link(page)
    assert str(refused.value) == f"{other.address}/secret is not allowed: only pages of {origin_of(site.address)} are"
    assert not other.asked
    assert not any(other.address in visited for visited in walk.visited)
    await assert_still_home(walk)


async def test_a_page_cannot_call_out(walk: Walk, sites: tuple[HardSite, HardSite]) -> None:
    """Pictures, frames, requests and sockets of scripts reach nobody else; the page itself is read."""
    assert (await walk.open_link("calls-out")).endswith("\nCalling.")
    await anyio.sleep(0.3)
    assert not sites[1].asked


async def test_links_to_other_sites_are_marked(walk: Walk, site: HardSite) -> None:
    """So that no step is spent on them."""
    assert "elsewhere (another site, not allowed)" in await walk.go(site.address)


@pytest.mark.parametrize("address", ["file:" + "///etc/passwd", "about:blank", "javascript:1", "ftp://127.0.0.1/", ""])
async def test_what_is_no_page_of_the_web_is_not_allowed(walk: Walk, address: str) -> None:
    """An origin is what is allowed, and these have none."""
    with pytest.raises(PageError, match="is not allowed"):
        await walk.go(address)
    await assert_still_home(walk)


def test_an_origin_is_scheme_host_and_port() -> None:
    """The port is always written, and what stands before the host is not taken for it."""
    assert origin_of("http://example.com/a?b#c") == "http://example.com:80"
    assert origin_of("HTTPS://Example.com") == "https://example.com:443"
    assert origin_of("http://[::1]:8000/") == "http://[::1]:8000"
    assert origin_of("http://127.0.0.1:80@example.com/") == "http://example.com:80"
    assert origin_of("data:text/html,hello") == origin_of("http:///x") == origin_of("") == ""


# Pages that do not end


@pytest.mark.parametrize("page", ["hang", "half", "spin", "reloads"])
async def test_a_page_that_never_ends_is_given_up(walk: Walk, page: str) -> None:
    """One that does not answer, stops halfway, computes for ever or is always another."""
    with impatient(walk):
        await walk.open_link(page)
    await assert_still_home(walk)


async def test_a_page_that_hangs_after_it_was_read_is_left_behind(walk: Walk) -> None:
    """It can't be read again, and the way goes on from it."""
    assert "Calm at first." in await walk.open_link("spin-later")
    await anyio.sleep(1.6)
    with impatient(walk):
        await walk.read_on()
    assert (await walk.back()).startswith("Home - ")


async def test_a_picture_that_does_not_come_is_not_waited_for(walk: Walk) -> None:
    """The words are there."""
    assert (await walk.open_link("picture")).endswith("Words beside a picture.")


async def test_redirects_without_end_are_an_error(walk: Walk) -> None:
    """Chromium counts them."""
    with pytest.raises(PageError, match="ERR_TOO_MANY_REDIRECTS"):
        await walk.open_link("round")
    await assert_still_home(walk)


@pytest.mark.parametrize("page", ["moved", "moved-by-script"])
async def test_a_page_that_has_moved_is_followed(walk: Walk, site: HardSite, page: str) -> None:
    """The address shown and remembered is the one where it ends."""
    assert await walk.open_link(page) == f"Fine - {site.address}/fine\nAll is well."
    assert walk.visited[1:] == [f"{site.address}/fine"]


# Pages that are too much


async def test_a_huge_page_is_read_in_parts(walk: Walk) -> None:
    """Five megabytes cost the model no more than any page does, and each action shows as much again."""
    first = await walk.open_link("huge")
    assert len(first) < PAGE_CHARS + 200
    assert "\nSTART\n" in first
    parts = int(first.rpartition(" of the text; read_on shows the next]")[0].rpartition("[part 1 of ")[2])
    assert parts > 1_000
    second = await walk.read_on()
    assert "START" not in second
    assert f"\n[part 2 of {parts} of the text; read_on shows the next]" in second
    assert (await walk.back()).startswith("Home - ")


async def test_a_page_of_two_parts_ends_with_the_second(walk: Walk) -> None:
    """Behind the last part is nothing, and the way back begins with the first part again."""
    assert "[part 1 of 2 of the text; read_on" in await walk.open_link("long")
    assert "THE END" in (last := await walk.read_on())
    assert last.endswith("\n[part 2 of 2 of the text]")
    with pytest.raises(PageError, match="the text of this page ends here"):
        await walk.read_on()
    await walk.back()
    with pytest.raises(PageError, match="the text of this page ends here"):
        await walk.read_on()
    assert "[part 1 of 2 of the text; read_on" in await walk.open_link("long")


async def test_of_many_links_the_first_are_shown(walk: Walk) -> None:
    """How many are not is said, and those cannot be opened by number."""
    page = await walk.open_link("links")
    assert f"\n{PAGE_LINKS}. number {PAGE_LINKS - 1}\n({500 - PAGE_LINKS} more links are not shown)" in page
    with pytest.raises(PageError, match=f"this page has no link '{PAGE_LINKS + 1}'"):
        await walk.open_link(str(PAGE_LINKS + 1))


# Pages that are odd


async def test_broken_html_is_read_as_a_browser_reads_it(walk: Walk) -> None:
    """Unclosed, misspelt and with bytes that are no text."""
    page = await walk.open_link("broken")
    assert page.startswith("(no title) - ")
    assert "Still " in page
    assert (await walk.open_link("fine")).startswith("Fine - ")


async def test_any_script_and_charset_is_read(walk: Walk) -> None:
    """Latin-1, and characters beyond 16 bits; one that the end of a part cuts in two is marked as such."""
    assert (await walk.open_link("umlaut")).endswith("Maß: 5 µm, naïve café")
    await walk.back()
    emoji = await walk.open_link("emoji")
    assert emoji.startswith("絵文字 - ")
    assert set(emoji.splitlines()[1]) == {"x", "🛑", "\N{REPLACEMENT CHARACTER}"}
    assert (await walk.open_link("次へ")).startswith("Fine - ")


@pytest.mark.parametrize(
    ("page", "why"), [("download", "Download is starting"), ("missing", "answers with the HTTP status 404")]
)
async def test_what_is_no_page_to_read_is_an_error(walk: Walk, site: HardSite, page: str, why: str) -> None:
    """A file, or a page that is not there."""
    with pytest.raises(PageError, match=why):
        await walk.go(f"{site.address}/{page}")
    await assert_still_home(walk)


async def test_dialogs_are_dismissed(walk: Walk) -> None:
    """Nobody is there to answer them, and none keeps the walk from leaving."""
    assert (await walk.open_link("dialogs")).endswith("\nfalse null")
    assert (await walk.back()).startswith("Home - ")


async def test_popups_are_closed(walk: Walk, context: BrowserContext) -> None:
    """However many a page opens."""
    before = len(context.pages)
    assert (await walk.open_link("popups")).endswith("\nBuy!")
    await anyio.sleep(1)
    with pytest.raises(PageError, match="the text of this page ends here"):
        await walk.read_on()
    assert (await walk.back()).startswith("Home - ")
    for _ in range(100):
        if len(context.pages) > before:
            await anyio.sleep(0.1)
    assert len(context.pages) <= before


async def test_links_are_those_that_can_be_opened(walk: Walk, site: HardSite) -> None:
    """No scripts, files, addresses to write to, hidden or broken ones; one without text has its address."""
    page = await walk.open_link("odd-links")
    assert page.partition("Links, for open_link:\n")[2] == f"1. {site.address}/fine\n2. good"
    assert (await walk.open_link("1")).startswith("Fine - ")


async def test_a_page_that_breaks_the_reading_is_an_error_and_no_more(walk: Walk) -> None:
    """Its script may have changed what the reading stands on."""
    with pytest.raises(PageError):
        await walk.open_link("traps")
    await assert_still_home(walk)


# Forms


async def test_a_form_is_sent_as_the_browser_would(walk: Walk) -> None:
    """With its hidden fields, in UTF-8, to its action; fields named after the form's own properties don't matter."""
    assert (await walk.open_link("form")).endswith("\nSearch field, for search: Find")
    page = await walk.search("Maß & Größe")
    assert page.endswith("{'q': ['Maß & Größe'], 'action': ['go'], 'method': ['post']}")


async def test_a_form_that_a_script_takes_shows_what_the_script_does(walk: Walk) -> None:
    """The page stays, and what it shows now is read."""
    await walk.open_link("form-of-a-script")
    assert "\nOnly switches\n" in await walk.search("switches")


async def test_a_form_that_may_change_something_is_not_filled_in(walk: Walk, site: HardSite) -> None:
    """The agent reads; it orders nothing."""
    assert "Search field" not in await walk.open_link("form-to-order")
    with pytest.raises(PageError, match="this page has no search field"):
        await walk.search("everything")
    assert "/order" not in site.asked


async def test_a_form_that_refuses_the_words_stays(walk: Walk) -> None:
    """The page's own rules for a field hold."""
    await walk.open_link("form-of-letters")
    assert (await walk.search("123")).startswith("Letters - ")
    assert (await walk.search("abc")).endswith("{'q': ['abc']}")
