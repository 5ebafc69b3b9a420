"""The wiring: split, researchers in parallel, summarize, then a team whose reviewer can send the work back.

::

    split -> researcher x N -> summarize -> research_team -> writer -> reviewer -> report
                                                ^              ^          |
                                                |              +-rewrite--+  at most max_rewrites times
                                                +------re-research--------+  at most max_re_research times
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias, cast

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from endstop._loops import AgentMessage, LoopDetector, LoopState
from endstop.langgraph.step_budget import (
    BANNERS,
    StepBudgetSettings,
    StepBudgetState,
    honest_truncation_delta,
    should_truncate,
    step_delta,
)

from .models import ScriptedChat
from .nodes import Nodes, Update, finished
from .ports import Browser, Search
from .search import FolderSearch
from .state import ResearchSettings, ResearchState

Node: TypeAlias = Callable[..., Update]

WORKED_ON = {
    "split": "question",
    "researcher": "sub_question",
    "summarize": "question",
    "research_team": "review_feedback",
    "writer": "review_feedback",
    "reviewer": "draft",
}
"""Node -> the key of what it works on, which its signature in the action history is made of."""

SAYS = {"research_team": "evidence", "writer": "draft", "reviewer": "review_feedback"}
"""Node of the team -> the key of what it says, which the loop detector compares."""


class BoundedState(ResearchState, StepBudgetState, total=False):
    """The state with the odometer in it."""

    said: Annotated[list[tuple[str, str]], operator.add]
    """Who of the team said what, where a detector is there to read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What may end the run at the reviewer: the step budget's two switches, and endstop's loop detector."""

    budget: StepBudgetSettings
    detector: LoopDetector | None

    @property
    def is_off(self) -> bool:
        """Whether nothing of it is switched on."""
        return not (self.budget.enable_step_budget or self.budget.enable_loop_detect or self.detector)

    def stops(self, state: Mapping[str, object]) -> tuple[bool, str]:
        """Whether the run is to end, and why."""
        stop, reason = should_truncate(state, self.budget)
        if stop or self.detector is None:
            return stop, reason
        loop = LoopState()
        for author, text in cast("list[tuple[str, str]]", state.get("said") or []):  # written by `counted`
            loop, finding = self.detector.observe(loop, AgentMessage(author=author, text=text))
            if finding is not None:
                return True, finding.reason
        return False, ""

    def counted(self, name: str, node: Node) -> Node:
        """The node with its step counted, and with what it says kept where a detector reads it."""

        def count(state: Mapping[str, object]) -> Update:
            update = {**node(state), **step_delta(name, str(state.get(WORKED_ON[name]) or ""))}
            if self.detector is not None and name in SAYS:
                update["said"] = [(name, update[SAYS[name]])]
            return update

        return count

    def asked_first(self, reviewer: Node) -> Node:
        """The reviewer, which passes the draft as it is where the run is to end."""

        def review(state: BoundedState) -> Update:
            stop, reason = self.stops(state)
            if not stop:
                return reviewer(state)
            language = self.budget.language
            report = f"{BANNERS[language]}\n\n{finished(state)}"
            return {**honest_truncation_delta(reason, language=language), "report": report}

        return review


def build_graph(
    settings: ResearchSettings | None = None,
    *,
    model: BaseChatModel | None = None,
    search: Search | None = None,
    browser: Browser | None = None,
    budget: StepBudgetSettings | None = None,
    detector: LoopDetector | None = None,
    bounded: bool = True,
    checkpointer: BaseCheckpointSaver[str] | None = None,
) -> CompiledStateGraph[BoundedState, None, ResearchState, ResearchState]:
    """The assistant as a compiled graph: give it a `question`, and it comes back with a `report`.

    Left out, the model is a scripted one, the search is over the documents that ship with the assistant, the budget is
    the environment's (`StepBudgetSettings.from_env`), and there is no browser. A thread of a checkpointer holds one
    question. With every switch off the graph does and returns what it would with `bounded=False`, which leaves the
    odometer out altogether.
    """
    nodes = Nodes(
        model=model or ScriptedChat.demo(),
        search=search or FolderSearch(),
        browser=browser,
        settings=settings or ResearchSettings(),
    )
    guard = Guard(budget=budget or StepBudgetSettings.from_env(), detector=detector)
    each: dict[str, Node] = {name: getattr(nodes, name) for name in WORKED_ON}
    if bounded:
        each["reviewer"] = guard.asked_first(each["reviewer"])
        each = {name: guard.counted(name, node) for name, node in each.items()}
    builder = StateGraph(
        BoundedState if bounded else ResearchState,
        input_schema=ResearchState,
        output_schema=ResearchState if guard.is_off or not bounded else BoundedState,
    )
    for name, node in each.items():
        builder.add_node(name, node)
    builder.add_edge(START, "split")
    builder.add_conditional_edges("split", fan_out, ["researcher"])
    builder.add_edge("researcher", "summarize")
    builder.add_edge("summarize", "research_team")
    builder.add_edge("research_team", "writer")
    builder.add_edge("writer", "reviewer")
    builder.add_conditional_edges("reviewer", after_review, ["writer", "research_team", END])
    return builder.compile(checkpointer=checkpointer)


def fan_out(state: ResearchState) -> list[Send]:
    """One researcher for each sub-question, all at once."""
    return [Send("researcher", {"sub_question": asked}) for asked in state["sub_questions"]]


def after_review(state: ResearchState) -> str:
    """Back to the writer, back to research, or to the end with the report."""
    if state.get("report"):
        return END
    return "writer" if state["review_decision"] == "rewrite" else "research_team"
