"""The research assistant does its work, keeps its own guards, and is the same graph with every switch off."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph

from endstop import ConfigError, LoopPolicy
from endstop._loops import LoopDetector
from endstop.langgraph.step_budget import BANNERS, StepBudgetSettings
from examples.research_assistant import ResearchSettings, build_graph, graph
from examples.research_assistant.models import DEMO_QUESTION, ScriptedChat
from examples.research_assistant.nodes import RESEARCH_TEAM, RESEARCHER, WRITER
from tests.research.scripts import QUESTION, SUB_QUESTIONS, FakeBrowser, FakeSearch, script

PASS, REWRITE, CONFLICT = "PASS", "REWRITE: clearer.", "CONFLICT: which is safe?"

GATHER = ["split", "researcher", "researcher", "researcher", "summarize"]
OFF = StepBudgetSettings()
ODOMETER = {"step_count", "action_history", "truncated", "said"}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the tester's counts."""
    for name in [name for name in os.environ if name.startswith("ENDSTOP_")]:
        monkeypatch.delenv(name)


def updates(built: CompiledStateGraph[Any, Any, Any, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each node execution with what it changed; those that ran at once in the order in which they ended."""
    return [item for chunk in built.stream(QUESTION, stream_mode="updates") for item in chunk.items()]


def order(built: CompiledStateGraph[Any, Any, Any, Any]) -> list[str]:
    """The nodes in the order in which they ran."""
    return [node for node, _ in updates(built)]


# --- the work ---------------------------------------------------------------------------------------------------------


def test_a_question_becomes_a_report() -> None:
    """The nodes in the order of the wiring; the draft that passed, and what was read for it, each source once."""
    search = FakeSearch()
    built = build_graph(model=script(PASS), search=search)
    assert order(built) == [*GATHER, "research_team", "writer", "reviewer"]
    asked = [*SUB_QUESTIONS, QUESTION["question"]]
    state = build_graph(model=script(PASS), search=FakeSearch()).invoke(QUESTION)
    assert state["report"] == "A draft.\n\nRead for this:" + "".join(f"\n- about {each}" for each in asked)
    assert state["notes"] == [f"{each}\nA note." for each in SUB_QUESTIONS]
    assert sorted(search.queries) == sorted(asked)


async def test_it_runs_asynchronously_too() -> None:
    """The same graph, the same report."""
    built = build_graph(model=script(PASS))
    assert await built.ainvoke(QUESTION) == build_graph(model=script(PASS)).invoke(QUESTION)


def test_the_graph_of_the_package_works_on_the_documents_that_ship_with_it() -> None:
    """With a scripted model: a conflict of facts, one rewrite, and a report that names what was read."""
    state = graph.invoke({"question": DEMO_QUESTION})
    assert (state["re_researches"], state["rewrites"], state["review_decision"]) == (1, 1, "pass")
    assert state["report"].startswith("Wire the endstops normally closed")
    assert "- club-note-on-switch-wiring.md" in state["report"]


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        ("1. One?\n2) Two?\n(3) Three?\n4. Four?", ["One?", "Two?", "Three?"]),
        ("- One?\n\n* Two?", ["One?", "Two?"]),
        ("One?\nOne?", ["One?"]),
        ("3D printers?", ["3D printers?"]),
        ("", [QUESTION["question"]]),
        ("\n - \n", [QUESTION["question"]]),
    ],
)
def test_sub_questions_are_the_lines_of_an_answer(answer: str, asked: list[str]) -> None:
    """Without marks and repetitions, at most as many as allowed, and the question itself where there are none."""
    built = build_graph(model=script(PASS, sub_questions=answer.split("\n")))
    assert built.invoke(QUESTION)["sub_questions"] == asked


def test_a_search_that_finds_nothing_is_told_to_the_model() -> None:
    """The model answers from what it is given, so it is given that there is nothing."""

    class Nothing(FakeSearch):
        def search(self, query: str, *, limit: int) -> list[Any]:
            return []

    model = Listening(script=script(PASS).script)
    state = build_graph(model=model, search=Nothing()).invoke(QUESTION)
    assert all("The search found nothing." in prompt for prompt in model.heard(RESEARCHER))
    assert state["report"] == "A draft.\n\nRead for this:"


class Listening(ScriptedChat):
    """A scripted model that keeps what it was asked."""

    prompts: list[str] = []  # noqa: RUF012 - pydantic gives each instance its own

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.prompts.append(str(messages[0].content))
        return super()._generate(messages, *args, **kwargs)

    def heard(self, instructions: str) -> list[str]:
        """The prompts that end with these instructions."""
        return [prompt for prompt in self.prompts if prompt.endswith(instructions)]


def test_a_conflict_of_facts_is_what_research_looks_up_again() -> None:
    """The second search is for the fact, not for the question."""
    search = FakeSearch()
    built = build_graph(model=script(CONFLICT, PASS), search=search)
    assert order(built) == [*GATHER, *["research_team", "writer", "reviewer"] * 2]
    assert search.queries[-2:] == [QUESTION["question"], "which is safe?"]


def test_a_rewrite_is_given_the_draft_and_the_remark() -> None:
    """The first draft is written without either."""
    model = Listening(script=script(REWRITE, PASS, drafts=["First.", "Second."]).script)
    state = build_graph(model=model).invoke(QUESTION)
    first, second = model.heard(WRITER)
    assert "your last draft" not in first
    assert "Improve your last draft: First." in second
    assert "The reviewer's remark: clearer." in second
    assert state["report"].startswith("Second.")


@pytest.mark.parametrize(
    ("said", "decision", "feedback"),
    [
        ("PASS", "pass", ""),
        ("pass. Well done.", "pass", "Well done."),
        ("**REWRITE**: clearer.", "rewrite", "clearer."),
        ("REWRITE\nclearer.", "rewrite", "clearer."),
        ("conflict: which?", "re_research", "which?"),
        ("PASSABLE, but no.", "rewrite", "PASSABLE, but no."),
        ("It should say more.", "rewrite", "It should say more."),
        ("", "rewrite", ""),
    ],
)
def test_a_review_begins_with_its_verdict(said: str, decision: str, feedback: str) -> None:
    """What begins with none of the three words is a remark, never a pass."""
    state = build_graph(ResearchSettings(max_rewrites=0, max_re_research=0), model=script(said)).invoke(QUESTION)
    assert (state["review_decision"], state["review_feedback"]) == (decision, feedback)


# --- its own guards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 3])
def test_rewrites_are_bounded(most: int) -> None:
    """The draft goes out as it is when they are used up; the verdict stays the reviewer's."""
    built = build_graph(ResearchSettings(max_rewrites=most), model=script(REWRITE))
    assert order(built) == [*GATHER, "research_team", *["writer", "reviewer"] * (most + 1)]
    state = build_graph(ResearchSettings(max_rewrites=most), model=script(REWRITE)).invoke(QUESTION)
    assert (state["review_decision"], state.get("rewrites", 0)) == ("rewrite", most)
    assert state["report"].startswith("A draft.")


@pytest.mark.parametrize("most", [0, 2])
def test_returns_to_research_are_bounded(most: int) -> None:
    """By a guard of their own, beside that of the rewrites."""
    built = build_graph(ResearchSettings(max_re_research=most), model=script(CONFLICT))
    assert order(built) == [*GATHER, *["research_team", "writer", "reviewer"] * (most + 1)]


def test_neither_guard_bounds_the_other() -> None:
    """Local limits add up to no bound that anybody has written down: here eleven executions of the team's nodes."""
    built = build_graph(
        ResearchSettings(max_rewrites=2, max_re_research=1), model=script(REWRITE, CONFLICT, REWRITE, REWRITE)
    )
    assert order(built)[len(GATHER) :] == [
        *["research_team", "writer", "reviewer", "writer", "reviewer"],
        *["research_team", "writer", "reviewer", "writer", "reviewer"],
    ]


def test_the_browser_is_asked_once_by_the_research_team_within_its_steps() -> None:
    """What it read is evidence like any other, under the addresses of its pages."""
    browser = FakeBrowser()
    model = Listening(script=script(PASS).script)
    state = build_graph(ResearchSettings(browser_max_steps=7), model=model, browser=browser).invoke(QUESTION)
    assert browser.asked == [(QUESTION["question"], 7)]
    assert "[http://127.0.0.1/a, http://127.0.0.1/b] Seen in the browser: Seen." in model.heard(RESEARCH_TEAM)[0]
    assert state["sources"][-1] == "http://127.0.0.1/a, http://127.0.0.1/b"


def test_the_guards_are_the_contracts() -> None:
    """Three rewrites, two returns to research, twelve steps of the browser."""
    guards = ResearchSettings()
    assert (guards.max_rewrites, guards.max_re_research, guards.browser_max_steps) == (3, 2, 12)


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("max_sub_questions", 0, "use a whole number, 1 or more"),
        ("max_rewrites", -1, "use a whole number, 0 or more"),
        ("browser_max_steps", True, "use a whole number, 0 or more"),
        ("hits", "3", "use a whole number, 1 or more"),
    ],
)
def test_a_guard_that_cannot_be_used_is_named(field: str, value: Any, remedy: str) -> None:
    """With the value, and what would be accepted."""
    with pytest.raises(ConfigError) as caught:
        ResearchSettings(**{field: value})
    assert (caught.value.field, caught.value.value, caught.value.remedy) == (field, value, remedy)


# --- switched off -----------------------------------------------------------------------------------------------------

REVIEWS = st.lists(st.sampled_from([PASS, REWRITE, CONFLICT]), min_size=1, max_size=7)


@settings(max_examples=40)
@given(REVIEWS, st.integers(0, 3), st.integers(0, 2))
def test_with_every_switch_off_it_is_the_graph_without_endstop(
    reviews: list[str], rewrites: int, re_researches: int
) -> None:
    """The same nodes, the same order, the same output, whatever the reviewer says; streams show the odometer beside."""
    guards = ResearchSettings(max_rewrites=rewrites, max_re_research=re_researches)
    drafts = [f"Draft {number}." for number in range(8)]

    def built(*, bounded: bool) -> CompiledStateGraph[Any, Any, Any, Any]:
        model = script(*reviews, sub_questions=["Only one?"], drafts=drafts)
        return build_graph(guards, model=model, search=FakeSearch(), budget=OFF, bounded=bounded)

    plain, ours = (updates(built(bounded=bounded)) for bounded in (False, True))
    assert not ODOMETER & {key for _, update in plain for key in update}
    assert [(node, {key: update[key] for key in update.keys() - ODOMETER}) for node, update in ours] == plain
    assert built(bounded=True).invoke(QUESTION) == built(bounded=False).invoke(QUESTION)


def test_off_is_the_default() -> None:
    """Nothing of the odometer is in the output of a graph that nobody asked to bound."""
    assert not ODOMETER & build_graph(model=script(PASS)).invoke(QUESTION).keys()


# --- switched on ------------------------------------------------------------------------------------------------------


def test_the_environment_switches_the_budget_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when the graph is built."""
    monkeypatch.setenv("ENDSTOP_ENABLE_STEP_BUDGET", "1")
    monkeypatch.setenv("ENDSTOP_MAX_TOTAL_STEPS", "1")
    assert build_graph(model=script(REWRITE)).invoke(QUESTION)["truncated"]


@pytest.mark.parametrize(("most", "steps"), [(8, 10), (9, 10), (10, 12), (11, 12)])
def test_the_first_review_after_the_budget_ends_the_run(most: int, steps: int) -> None:
    """The reviewer asks before its work: with 7 and 9 executions before its first two reviews it is over at these."""
    budget = StepBudgetSettings(enable_step_budget=True, max_total_steps=most)
    state = build_graph(model=script(REWRITE), budget=budget).invoke(QUESTION)
    assert (state["step_count"], state["truncated"], state["review_decision"]) == (steps, True, "pass")
    assert state["review_feedback"] == f"诚实收尾：步数预算超限（{steps - 1}/{most}）"
    assert state["report"].startswith(f"{BANNERS['zh']}\n\nA draft.\n\nRead for this:")


def test_a_run_inside_its_budget_is_not_marked() -> None:
    """Eight executions, and a budget that the reviewer has not used up when it asks."""
    budget = StepBudgetSettings(enable_step_budget=True, max_total_steps=8)
    state = build_graph(model=script(PASS), budget=budget).invoke(QUESTION)
    assert (state["step_count"], state.get("truncated")) == (8, None)
    assert state["report"].startswith("A draft.")


def test_the_ending_comes_in_english() -> None:
    """Where the settings say so."""
    budget = StepBudgetSettings(enable_step_budget=True, max_total_steps=1, language="en")
    state = build_graph(model=script(REWRITE), budget=budget).invoke(QUESTION)
    assert state["report"].startswith(f"{BANNERS['en']}\n\nA draft.")
    assert state["review_feedback"] == "honest ending: step budget exceeded (7/1)"


@pytest.mark.parametrize("sub_questions", [SUB_QUESTIONS[:1], SUB_QUESTIONS])
def test_every_node_execution_counts_one_step(sub_questions: list[str]) -> None:
    """The parallel researchers each one of their own."""
    built = build_graph(model=script(CONFLICT, REWRITE, PASS, sub_questions=sub_questions), budget=OFF)
    done = updates(built)
    thread = {"configurable": {"thread_id": "1"}}
    saved = build_graph(
        model=script(CONFLICT, REWRITE, PASS, sub_questions=sub_questions), budget=OFF, checkpointer=InMemorySaver()
    )
    saved.invoke(QUESTION, thread)
    state = saved.get_state(thread).values
    assert state["step_count"] == len(done) == 10 + len(sub_questions)
    assert [entry.partition(":")[0] for entry in state["action_history"]] == [node for node, _ in done]


def test_the_detector_ends_a_run_whose_team_says_the_same_again() -> None:
    """The same draft opens the third time: seven executions of the team, one review sooner than the fourth draft."""
    state = build_graph(model=script(REWRITE), budget=OFF, detector=LoopDetector()).invoke(QUESTION)
    assert (state["step_count"], state["truncated"]) == (len(GATHER) + 7, True)
    assert state["report"].startswith(BANNERS["zh"])
    assert "3 times" in state["review_feedback"]


def test_the_detector_lets_a_team_go_on_that_says_something_new() -> None:
    """A new draft each time is progress, though the reviewer says the same."""
    drafts = [f"Draft {number}." for number in range(4)]
    state = build_graph(model=script(REWRITE, drafts=drafts), budget=OFF, detector=LoopDetector()).invoke(QUESTION)
    assert (state["step_count"], state.get("truncated")) == (len(GATHER) + 9, None)


def test_the_detector_compares_whole_texts() -> None:
    """Drafts that part after 80 characters are different ones; the plain rule of signatures would not see it."""
    drafts = [f"{'Wire them normally closed. ' * 4}{number}" for number in range(4)]
    state = build_graph(model=script(REWRITE, drafts=drafts), budget=OFF, detector=LoopDetector()).invoke(QUESTION)
    assert state.get("truncated") is None


def test_the_policy_of_the_detector_counts() -> None:
    """Two are enough where two are said to be."""
    detector = LoopDetector(policy=LoopPolicy(repeats=2))
    state = build_graph(model=script(REWRITE), budget=OFF, detector=detector).invoke(QUESTION)
    assert state["step_count"] == len(GATHER) + 5
