"""The browser agent on the pages that come with it, in a real Chromium."""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser
from typing import TypedDict

import anyio
import anyio.to_thread
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import tool_call
from langgraph.graph import END, START, StateGraph

from endstop import ConfigError, PlanLimits
from endstop.langgraph import bound
from endstop.models.scripted import Step, call, turn
from examples.research_assistant.browser import BrowserAgent
from examples.research_assistant.browser_site import PAGES, scripted_reader, serve_pages
from examples.research_assistant.graph import build_graph
from examples.research_assistant.models import DEMO_QUESTION
from examples.research_assistant.ports import Browser
from tests.models.fake_langchain import FakeChat
from tests.research.browser_fakes import act, needs_chromium, reader, shown

pytestmark = needs_chromium

QUESTION = "Which part repeats best, and what does it cost?"


@pytest.fixture(scope="module", name="address")
def served_pages():
    """The address of the pages, while the tests of this module run."""
    with serve_pages() as address:
        yield address


async def test_an_answer_that_takes_three_pages(address: str) -> None:
    """Links are opened by their text or their number, and the answer is the model's own, unmarked."""
    model = reader(act("open_link", link="Parts"), act("open_link", link="next page"), act("open_link", link=6), "B-09")
    browsed = await BrowserAgent(model, start=address).abrowse(QUESTION, max_steps=12)
    assert (browsed.text, browsed.steps, browsed.truncated) == ("B-09", 3, False)
    assert [source.rpartition("/")[2] for source in browsed.sources] == [
        "index.html",
        *(f"parts-{number}.html" for number in (1, 2, 3)),
    ]
    assert "B-09\tPrecision plunger switch\t4 µm\t3,000,000 operations\t38.00 €" in shown(model)[-1]


async def test_the_model_is_shown_the_first_page_with_the_question(address: str) -> None:
    """It knows its links and fields before it acts, and has not spent a step."""
    model = reader("No idea.")
    browsed = await BrowserAgent(model, start=address).abrowse(QUESTION, max_steps=12)
    prompt = str(model.requests[0].messages[0].content)
    assert prompt.startswith(f"The browser shows this page:\n\nThe Switch Bench - {address}\n")
    assert "as Jürgen calls it" in prompt
    assert "\nSearch field, for search: Search this site\nLinks, for open_link:\n1. Home\n" in prompt
    assert prompt.endswith(f"\n7. Help\n\nThe question: {QUESTION}")
    assert (browsed.steps, browsed.sources) == (0, (address,))


async def test_a_search_form_is_filled_in_and_sent(address: str) -> None:
    """What it finds is read like any page."""
    model = reader(act("search", words="dust fork"), act("open_link", link="Dust"), "After 6 hours.")
    browsed = await BrowserAgent(model, start=address).abrowse("When does an open fork fail?", max_steps=12)
    found, dust = shown(model)
    assert "search.html?q=dust+fork\n" in found
    assert "2 of 6 pages have: dust fork\n" in found
    assert "read as interrupted after 6 hours" in dust
    assert browsed.steps == 2


async def test_back_leads_the_way_that_was_come(address: str) -> None:
    """Twice back is two pages back; before the first page there is none."""
    model = reader(act("open_link", link="Articles"), act("open_link", link="Dust"), *[act("back")] * 3, "Enough.")
    await BrowserAgent(model, start=address).abrowse(QUESTION, max_steps=12)
    *_, once, twice, thrice = shown(model)
    assert once.startswith("Articles - ")
    assert twice.startswith("The Switch Bench - ")
    assert thrice == "PageError: there is no page before this one"


@pytest.mark.parametrize("max_steps", [1, 4, 12])
async def test_a_walk_without_end_is_cut_at_the_limit_and_says_so(address: str, max_steps: int) -> None:
    """It does exactly the actions allowed; its text is a partial answer under a line that names the limit."""
    steps = [act("search", words=f"word{number}") for number in range(max_steps)]
    model = reader(*steps, act("search", words="one more"))
    browsed = await BrowserAgent(model, start=address.replace("index", "search")).abrowse(QUESTION, max_steps=max_steps)
    assert browsed.steps == max_steps
    assert browsed.truncated
    assert browsed.text == (
        f"[TRUNCATED: max_tool_calls is used up ({max_steps} of {max_steps}); "
        "this is a partial answer from what was found so far]\n\nThis is what I have found."
    )
    assert len(browsed.sources) == max_steps + 1


async def test_an_answer_after_the_last_step_is_a_whole_one(address: str) -> None:
    """Whoever answers with the last step used up is not cut."""
    model = reader(*[act("search", words=f"word{number}") for number in range(12)], "B-09")
    browsed = await BrowserAgent(model, start=address.replace("index", "search")).abrowse(QUESTION, max_steps=12)
    assert (browsed.text, browsed.steps, browsed.truncated) == ("B-09", 12, False)


async def test_a_cut_walk_without_a_conclusion_hands_over_what_was_read(address: str) -> None:
    """A model that says nothing at the end does not make its reading disappear."""
    model = reader(act("open_link", link="Articles"), act("open_link", link="Dust"), conclusion="")
    browsed = await BrowserAgent(model, start=address).abrowse(QUESTION, max_steps=2)
    assert browsed.truncated
    assert browsed.text.startswith("[TRUNCATED: max_tool_calls is used up (2 of 2); there is no answer; ")
    assert "read as interrupted after 6 hours" in browsed.text


async def test_no_steps_at_all_leave_the_first_page(address: str) -> None:
    """Zero is a limit like any other."""
    browsed = await BrowserAgent(reader(act("back")), start=address).abrowse(QUESTION, max_steps=0)
    assert (browsed.steps, browsed.truncated, browsed.sources) == (0, True, (address,))


async def test_pages_that_lead_in_a_circle_end_the_walk_before_the_steps_do(address: str) -> None:
    """The model is told once; where it goes on, the walk ends as the loop that it is."""
    model = reader(act("open_link", link="Help"), act("open_link", link=5))
    browsed = await BrowserAgent(model, start=address).abrowse("What are your opening hours?", max_steps=12)
    assert browsed.truncated
    assert browsed.text.startswith("[TRUNCATED: the run repeats itself; a cycle of 2 steps (newest: open_link) ")
    assert browsed.steps == 9
    assert [source.rpartition("/")[2] for source in browsed.sources] == ["index.html", "help.html", "contact.html"]


async def test_one_action_is_done_at_a_time(address: str) -> None:
    """Of two actions at once the first is done; the other, meant for a page that is gone, is neither done nor paid."""
    both = turn(calls=[call("open_link", {"link": "Articles"}), call("open_link", {"link": "Help"})])
    model = reader(both, act("open_link", link="Dust"), "Done.")
    browsed = await BrowserAgent(model, start=address).abrowse(QUESTION, max_steps=2)
    assert [result.partition(" - ")[0] for result in shown(model)] == [
        "Articles",
        "Not run: do one action at a time, and look at the page that it leads to.",
        "Dust in optical forks",
    ]
    assert (browsed.steps, browsed.truncated) == (2, False)


async def test_the_model_is_told_when_the_steps_run_out(address: str) -> None:
    """From four fifths on, so that it can come to an end by itself."""
    model = reader(*[act("search", words=f"word{number}") for number in range(10)], "B-09")
    await BrowserAgent(model, start=address.replace("index", "search")).abrowse(QUESTION, max_steps=12)
    told = "The run is near its limits: max_tool_calls: 10 of 12 used. Come to an answer soon."
    assert [told in str(request.messages[-1]) for request in model.requests] == [False] * 10 + [True]


async def test_the_time_is_a_limit_as_well(address: str) -> None:
    """It ends a model that takes too long, with what was read by then."""
    slow = Step(turn=act("open_link", link="Dust"), latency_seconds=60)
    model = reader(act("open_link", link="Articles"), slow)
    browsed = await BrowserAgent(model, start=address, max_seconds=6).abrowse(QUESTION, max_steps=12)
    assert (browsed.steps, browsed.truncated) == (1, True)
    assert browsed.text.startswith("[TRUNCATED: max_seconds ")
    assert len(browsed.sources) == 2


async def test_a_chat_model_of_langchain_does_as_well(address: str) -> None:
    """It is the graph's own model that browses."""
    asks = AIMessage("", tool_calls=[tool_call(name="open_link", args={"link": "Articles"}, id="a")])
    chat = FakeChat(answers=[asks, AIMessage("There are three.")])
    browsed = await BrowserAgent(chat, start=address).abrowse("How many articles are there?", max_steps=12)
    assert (browsed.text, browsed.steps) == ("There are three.", 1)
    assert "How we measure repeatability" in str(chat.sent[-1][-1].content)


def test_the_assistant_reads_pages_with_it(address: str) -> None:
    """What it read is evidence, and the report names the pages."""
    graph = build_graph(browser=BrowserAgent(scripted_reader(), start=address))
    report = graph.invoke({"question": DEMO_QUESTION})["report"]
    assert address.replace("index", "wire-test") in report


def test_the_limits_of_a_bound_graph_hold_inside_it(address: str) -> None:
    """Its model is asked as often as the graph may ask one, the pages notwithstanding, and Chromium is closed."""

    class State(TypedDict, total=False):
        question: str
        found: str

    asks = [AIMessage("", tool_calls=[tool_call(name="back", args={}, id=f"a{number}")]) for number in range(9)]
    chat = FakeChat(answers=asks)
    browser: Browser = BrowserAgent(chat, start=address)
    builder = StateGraph(State)
    builder.add_node("look", lambda state: {"found": browser.browse(state["question"], max_steps=12).text})
    builder.add_edge(START, "look")
    builder.add_edge("look", END)
    limits = PlanLimits(max_model_rounds=None, max_model_calls=2)
    ended = bound(builder.compile(), limits).invoke({"question": QUESTION})["endstop"]
    assert (ended.limit, ended.used, ended.allowed) == ("max_model_calls", 2, 2)
    assert len(chat.sent) == 2


async def test_a_node_calls_it_from_a_thread(address: str) -> None:
    """It is a `Browser`, which the graph calls from its worker threads, several at once."""
    browser: Browser = BrowserAgent(scripted_reader(), start=address)
    browsed = await anyio.to_thread.run_sync(partial(browser.browse, "What if a wire breaks?", max_steps=12))
    assert browsed.text.startswith("The wire test unplugged the wires of a running mill: ")
    assert (browsed.steps, browsed.truncated) == (2, False)


async def test_two_questions_at_once_do_not_meet(address: str) -> None:
    """Each has a Chromium, a page and a way of its own."""
    ways = {"Dust": "dust.html", "The wire test": "wire-test.html"}
    found = {}

    async def look_up(title: str) -> None:
        model = reader(act("open_link", link="Articles"), act("open_link", link=title), act("back"), title)
        found[title] = await BrowserAgent(model, start=address).abrowse(title, max_steps=12)

    async with anyio.create_task_group() as group:
        for title in ways:
            group.start_soon(look_up, title)
    for title, page in ways.items():
        assert found[title].text == title
        assert [source.rpartition("/")[2] for source in found[title].sources] == ["index.html", "articles.html", page]


async def test_a_first_page_that_does_not_open_is_an_honest_ending() -> None:
    """There is nothing to read, no model is asked, and nobody takes it for an answer."""
    with serve_pages() as gone:
        pass
    model = reader("An answer out of thin air.")
    browsed = await BrowserAgent(model, start=gone).abrowse(QUESTION, max_steps=12)
    assert re.fullmatch(
        r"\[TRUNCATED: net::ERR_CONNECTION_REFUSED at .*index\.html; there is no answer\]", browsed.text
    )
    assert (browsed.steps, browsed.sources, browsed.truncated) == (0, (), True)
    assert not model.requests


@pytest.mark.parametrize("address", ["", "ftp://example.com/", "file:" + "///etc/passwd", "example.com", "http://"])
def test_an_address_that_is_none_of_the_web_is_refused(address: str) -> None:
    """Before a Chromium is started."""
    with pytest.raises(ConfigError):
        BrowserAgent(reader("?"), start=address)


class _Links(HTMLParser):
    """The addresses of a page that lead to others of its site."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down where an element leads."""
        self.found |= {value for name, value in attrs if name in ("href", "src", "action") and value}


def test_the_pages_lead_to_each_other_and_nowhere_else() -> None:
    """No link of the site is dead, and every page is reached from the first."""
    reached: set[str] = set()
    ahead = {"index.html"}
    while ahead:
        name = ahead.pop()
        reached.add(name)
        if name.endswith(".html"):
            links = _Links()
            links.feed((PAGES / name).read_text(encoding="utf-8"))
            ahead |= links.found - reached
    assert reached == {path.name for path in PAGES.iterdir()}
