"""What the graph remembers of one question, and the settings that bound it."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Annotated, TypedDict

from endstop import ConfigError


class ResearchState(TypedDict, total=False):
    """One question from its start to its report; whoever invokes the graph gives `question` alone."""

    question: str
    sub_questions: list[str]
    notes: Annotated[list[str], operator.add]
    """What each researcher found, in the order of the sub-questions."""
    sources: Annotated[list[str], operator.add]
    """Where everything that was read stands; one may be in it more than once."""
    summary: str
    evidence: str
    """What the research team found last."""
    draft: str
    review_decision: str
    """`pass`, `rewrite` or `re_research`: what the reviewer said last, whether or not it could be had."""
    review_feedback: str
    rewrites: int
    re_researches: int
    report: str
    """The finished text; the run ends with the review that writes it."""


class ResearchTask(TypedDict):
    """What one researcher is sent."""

    sub_question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResearchSettings:
    """The assistant's own guards. Each bounds one thing; none of them bounds the run."""

    max_sub_questions: int = 3
    max_rewrites: int = 3
    max_re_research: int = 2
    browser_max_steps: int = 12
    hits: int = 3
    """How many hits of a search are read."""

    @property
    def caps(self) -> dict[str, int]:
        """The guards as caps on edges of the graph, which `endstop.langgraph.audit` derives the worst case from."""
        return {"reviewer->writer": self.max_rewrites, "reviewer->research_team": self.max_re_research}

    @property
    def fan_out(self) -> dict[str, int]:
        """How many tasks of a node there are at once, at most."""
        return {"researcher": self.max_sub_questions}

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 1 if field.name in ("max_sub_questions", "hits") else 0
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(field.name, value, f"use a whole number, {least} or more")
