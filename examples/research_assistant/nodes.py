"""The six nodes. Each reads the state, asks the model once, and returns what it changes; none knows of endstop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from langchain_core.language_models import BaseChatModel

from .ports import Browser, Hit, Search
from .state import ResearchSettings, ResearchState, ResearchTask

Update: TypeAlias = dict[str, object]
"""What a node changes in the state."""

# What a node asks stands last in its prompt, behind the material: small models lose sight of what stands before.
SPLIT = """\
Split this question into short sub-questions that can be searched for one by one. \
Write each on a line of its own, and nothing else."""

RESEARCHER = """\
Answer the sub-question from these sources alone, in two sentences at most. Name the source in brackets. \
If the sources do not say, write that they do not say."""

SUMMARIZE = """\
Condense these notes into one paragraph that answers the question. Keep the sources in brackets."""

RESEARCH_TEAM = """\
Write one line for each source: its name in brackets, and in a few words what it says on the point. \
Then one line: do the sources agree or contradict each other, and which one is to be trusted, and why?"""

WRITER = """\
Write the answer to the question in three to five sentences, in your own words, with the sources in brackets. \
If sources contradict each other, say so, and which one to trust."""

REVIEWER = """\
Review the answer. Write PASS if it answers the question and fits the evidence. Write "REWRITE: " and what to change, \
if it is unclear or leaves out what matters. Write "CONFLICT: " and the fact, if sources contradict each other on a \
fact and the evidence does not say which one to trust. Write nothing else."""

_DECISIONS = {"PASS": "pass", "REWRITE": "rewrite", "CONFLICT": "re_research"}
_VERDICT = re.compile(r"\W*(PASS|REWRITE|CONFLICT)\b[\s:.*]*", re.IGNORECASE)
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\(?\d+[.)])?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of one assistant, and what they work with. `browser` is None where nobody asked for one."""

    model: BaseChatModel
    search: Search
    browser: Browser | None
    settings: ResearchSettings

    def split(self, state: ResearchState) -> Update:
        """The question as sub-questions; itself where the model gives none."""
        answer = self._ask(SPLIT, state["question"], f"Write {self.settings.max_sub_questions} sub-questions.")
        lines = [_LIST_MARK.sub("", line).strip() for line in answer.splitlines()]
        asked = list(dict.fromkeys(line for line in lines if line))[: self.settings.max_sub_questions]
        return {"sub_questions": asked or [state["question"]]}

    def researcher(self, task: ResearchTask) -> Update:
        """One sub-question, answered from what a search finds."""
        hits = self.search.search(task["sub_question"], limit=self.settings.hits)
        answer = self._ask(RESEARCHER, _quoted(hits), f"Sub-question: {task['sub_question']}")
        return {"notes": [f"{task['sub_question']}\n{answer}"], "sources": [hit.source for hit in hits]}

    def summarize(self, state: ResearchState) -> Update:
        """The notes of all researchers as one paragraph."""
        return {"summary": self._ask(SUMMARIZE, "\n\n".join(state["notes"]), f"The question: {state['question']}")}

    def research_team(self, state: ResearchState) -> Update:
        """Evidence on the question, or on the fact over which the reviewer found its sources in conflict."""
        point = state.get("review_feedback") or state["question"]
        hits = self.search.search(point, limit=self.settings.hits)
        if self.browser is not None:
            seen = self.browser.browse(point, max_steps=self.settings.browser_max_steps)
            hits += [Hit(source=", ".join(seen.sources) or "browser", title="Seen in the browser", text=seen.text)]
        evidence = self._ask(RESEARCH_TEAM, _quoted(hits), f"Summary: {state['summary']}", f"The point: {point}")
        return {"evidence": evidence, "sources": [hit.source for hit in hits]}

    def writer(self, state: ResearchState) -> Update:
        """A draft, or the next one after a remark of the reviewer."""
        remark, draft = state.get("review_feedback"), state.get("draft")
        earlier = [f"Improve your last draft: {draft}", f"The reviewer's remark: {remark}"] if draft and remark else []
        material = [f"Summary: {state['summary']}", f"Evidence: {state['evidence']}", *earlier]
        return {"draft": self._ask(WRITER, *material, f"The question: {state['question']}")}

    def reviewer(self, state: ResearchState) -> Update:
        """The verdict on the draft. It ends the run where it passes the draft, or where what it asks for is used up."""
        answer = self._ask(
            REVIEWER,
            f"Evidence: {state['evidence']}",
            f"The question: {state['question']}",
            f"Answer: {state['draft']}",
        )
        verdict = _VERDICT.match(answer)
        decision = _DECISIONS[verdict[1].upper()] if verdict else "rewrite"
        review: Update = {
            "review_decision": decision,
            "review_feedback": answer[verdict.end() :] if verdict else answer,
        }
        rewrites, re_researches = state.get("rewrites", 0), state.get("re_researches", 0)
        if decision == "rewrite" and rewrites < self.settings.max_rewrites:
            return {**review, "rewrites": rewrites + 1}
        if decision == "re_research" and re_researches < self.settings.max_re_research:
            return {**review, "re_researches": re_researches + 1}
        return {**review, "report": finished(state)}

    def _ask(self, instructions: str, *parts: str) -> str:
        return str(self.model.invoke("\n\n".join([*parts, instructions])).text).strip()


def finished(state: ResearchState) -> str:
    """The report: the draft, and everything that was read for it."""
    sources = "".join(f"\n- {source}" for source in dict.fromkeys(state.get("sources", [])))
    return f"{state['draft']}\n\nRead for this:{sources}"


def _quoted(hits: Sequence[Hit]) -> str:
    return "\n\n".join(f"[{hit.source}] {hit.title}: {hit.text}" for hit in hits) or "The search found nothing."
