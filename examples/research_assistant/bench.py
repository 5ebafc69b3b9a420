"""The bench: one stubborn reviewer, five ways to end its run, each a real run of the whole graph.

Every run starts with the same material gathered, from a checkpoint as `summarize` leaves it, and with the assistant's
default guards. The reviewer asks for the same rewrite for ever, and the writer writes the same draft for ever. Steps
are the `step_count` of the state at the end: the node executions from research_team on.
"""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from endstop._loops import LoopDetector
from endstop.langgraph.step_budget import BANNERS, StepBudgetSettings

from .graph import build_graph
from .models import ScriptedChat
from .nodes import RESEARCH_TEAM, REVIEWER, WRITER
from .state import ResearchState

OFF = StepBudgetSettings()

SCENARIOS: tuple[tuple[str, StepBudgetSettings, LoopDetector | None], ...] = (
    ("before", OFF, None),
    ("step budget on, max 8", StepBudgetSettings(enable_step_budget=True, max_total_steps=8), None),
    ("loop detection on, window 3", StepBudgetSettings(enable_loop_detect=True, loop_window=3), None),
    (
        "both",
        StepBudgetSettings(enable_step_budget=True, max_total_steps=8, enable_loop_detect=True, loop_window=3),
        None,
    ),
    ("endstop's detector", OFF, LoopDetector()),
)
"""Each scenario's name, its step budget, and endstop's detector where it is on. All else is the same."""

GATHERED: ResearchState = {
    "question": "How are endstops wired?",
    "sub_questions": ["Normally open or normally closed?"],
    "notes": ["Normally open or normally closed?\nNormally closed: a broken wire stops the machine."],
    "sources": ["normally-closed-wiring.md"],
    "summary": "Normally closed, because a broken wire then stops the machine [normally-closed-wiring.md].",
}
"""What every run starts with."""


def stubborn() -> ScriptedChat:
    """A writer that always writes the same, and a reviewer that always asks for the same."""
    return ScriptedChat(
        script={
            RESEARCH_TEAM: ["The sources agree: normally closed [normally-closed-wiring.md]."],
            WRITER: ["Wire them normally closed [normally-closed-wiring.md]."],
            REVIEWER: ["REWRITE: say it more convincingly."],
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one run ended."""

    scenario: str
    end: str
    """`honest_truncate`, `local_limit_stop` (a guard was used up and the draft went out as it was) or `passed`."""
    steps: int
    truncated: bool
    banner: bool


def run_scenario(scenario: str, budget: StepBudgetSettings, detector: LoopDetector | None) -> Row:
    """Run the graph from the gathered material to its end."""
    graph = build_graph(model=stubborn(), budget=budget, detector=detector, checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": scenario}}
    graph.update_state(thread, GATHERED, as_node="summarize")
    graph.invoke(None, thread)
    state = graph.get_state(thread).values
    truncated = state.get("truncated", False)
    stopped = "passed" if state["review_decision"] == "pass" else "local_limit_stop"
    return Row(
        scenario=scenario,
        end="honest_truncate" if truncated else stopped,
        steps=state["step_count"],
        truncated=truncated,
        banner=state["report"].startswith(tuple(BANNERS.values())),
    )


def bench() -> list[Row]:
    """Every scenario, run."""
    return [run_scenario(*scenario) for scenario in SCENARIOS]


def table(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""
    cells = [(row.scenario, row.end, f"{row.steps}", _word(row.truncated), _word(row.banner)) for row in rows]
    lines = [("scenario", "end", "steps", "truncated", "banner"), ("---",) * 5, *cells]
    return "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def _word(value: bool) -> str:
    return "yes" if value else "no"
