"""The assistant at work before somebody's eyes: `endstop demo research`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from anyio.from_thread import BlockingPortal
from langgraph.graph.state import CompiledStateGraph

from endstop import ConfigError, Model
from endstop._loops import LoopDetector
from endstop.langgraph.step_budget import StepBudgetSettings

from .bench import bench, table
from .graph import build_graph
from .models import DEMO_QUESTION, EndstopChat, ScriptedChat
from .ports import Browser
from .search import FolderSearch, TavilySearch
from .state import ResearchSettings, ResearchState

T = TypeVar("T")

Write = Callable[[str], None]


def bench_table() -> str:
    """What the bench measures, as a table in Markdown."""
    return table(bench())


def demo(
    question: str | None,
    *,
    model: Model | None,
    portal: BlockingPortal,
    browse: bool,
    max_steps: int | None,
    detect_loops: bool,
    write: Write,
) -> None:
    """Research a question, and write down the steps, the report and how the run ended.

    `model` runs in the event loop of `portal`; without one, the answers are a script's for `DEMO_QUESTION`.

    Raises:
        ConfigError: a setting cannot be used, or a question was given and only the script could answer.
    """
    if model is None and question not in (None, DEMO_QUESTION):
        raise ConfigError("QUESTION", question, "leave it out: the answers written beforehand are for another one")
    asked = question or DEMO_QUESTION
    chat = ScriptedChat.demo() if model is None else EndstopChat(answers=model, portal=portal)
    search, searched = _search()
    budget = step_budget(max_steps)
    detector = LoopDetector() if detect_loops else None
    settings = ResearchSettings()
    with search, _browser(model) if browse else nullcontext() as browser:
        graph = build_graph(settings, model=chat, search=search, browser=browser, budget=budget, detector=detector)
        write(f"Search: {searched}\nBounds: {_bounds(settings, budget, detector)}\n\nThe question: {asked}\n")
        steps, state = _interruptibly(partial(follow, graph, asked, write), chat)
    write(f"\n{state['report']}\n\n{ending(steps, state)}")


def follow(graph: CompiledStateGraph, question: str, write: Write) -> tuple[int, ResearchState]:
    """Run the graph, write a line for each node execution, and return their number and the state at the end."""
    steps, state = 0, ResearchState()
    for mode, chunk in graph.stream({"question": question}, stream_mode=["updates", "values"]):
        if mode == "values":
            state = chunk
            continue
        for node, update in chunk.items():
            steps += 1
            write(f"· {steps} {node}: {told(node, update)}")
    return steps, state


def told(node: str, update: ResearchState) -> str:
    """What a node did, in one line."""
    match node:
        case "split":
            return "; ".join(update["sub_questions"])
        case "researcher":
            return f"{update['notes'][0].splitlines()[0]} ({', '.join(update['sources'])})"
        case "research_team":
            return f"read {', '.join(update['sources'])}"
        case "reviewer":
            return f"{update['review_decision']} {_cut(update['review_feedback'])}".rstrip()
        case _:
            return f"{len(next(iter(update.values())).split())} words"


def ending(steps: int, state: ResearchState) -> str:
    """How the run ended, in one line."""
    if state.get("truncated"):
        how = f"Cut short, and says so ({state['review_feedback']})"
    elif state["review_decision"] == "pass":
        how = "The reviewer passed it"
    else:
        how = "A guard of its own was used up, and the draft went out as it was"
    return f"{how}: {steps} node executions."


def step_budget(max_steps: int | None) -> StepBudgetSettings:
    """The step budget of the environment, in English unless it says otherwise, or one of `max_steps`."""
    given = StepBudgetSettings.from_env({"ENDSTOP_LANGUAGE": "en", **os.environ})
    return given if max_steps is None else replace(given, enable_step_budget=True, max_total_steps=max_steps)


def _interruptibly(run: Callable[[], T], chat: ScriptedChat | EndstopChat) -> T:
    """What `run` returns, from a thread: LangGraph waits for its nodes, so Ctrl-C has to end what they wait for."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            return running.result()
        except KeyboardInterrupt:
            if isinstance(chat, EndstopChat):
                chat.cancel()
            raise


def _search() -> tuple[FolderSearch | TavilySearch, str]:
    key = os.environ.get("TAVILY_API_KEY")
    if key:
        return TavilySearch(key), "the web, by Tavily"
    return FolderSearch(), "the documents that come with it"


def _bounds(settings: ResearchSettings, budget: StepBudgetSettings, detector: LoopDetector | None) -> str:
    bounds = [f"at most {settings.max_rewrites} rewrites and {settings.max_re_research} returns to research"]
    if budget.enable_step_budget:
        bounds.append(f"the first review after {budget.max_total_steps} node executions ends it")
    if budget.enable_loop_detect:
        bounds.append(f"{budget.loop_window} equal actions running end it")
    if detector is not None:
        bounds.append("a team that repeats itself ends it")
    return "; ".join(bounds)


def _cut(text: str, characters: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 3]}..."


@contextmanager
def _browser(model: Model | None) -> Generator[Browser]:
    """The browser agent on the pages that ship with the assistant; what it needs is imported when it is asked for.

    Without a model it walks the way that a script knows to what these pages say about the demo's own question.
    """
    browser, site = (importlib.import_module(f".{name}", __package__) for name in ("browser", "browser_site"))
    with site.serve_pages() as address:
        yield browser.BrowserAgent(model or site.scripted_reader(), start=address)
