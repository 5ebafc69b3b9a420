"""CPU of the import that each program begins with, in a fresh process each time."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.measure import Effort, Goal, Table, millis, plain

OURS = "`import endstop`"
IMPORTS = {
    OURS: "import endstop",
    "endstop with `OpenAIModel`": "import endstop; from endstop.models.openai import OpenAIModel",
    "langchain `create_agent`": "from langchain.agents import create_agent",
    "langchain `create_agent` with `ChatOpenAI`": "from langchain.agents import create_agent; "
    "from langchain_openai import ChatOpenAI",
    "pydantic-ai": "from pydantic_ai import Agent",
    "pydantic-ai with `OpenAIChatModel`": "from pydantic_ai import Agent; "
    "from pydantic_ai.models.openai import OpenAIChatModel",
    "openai-agents": "from agents import Agent, Runner",
}
MOST_SECONDS = 0.15

SCRIPT = """
import time
started = time.process_time()
{statement}
print(time.process_time() - started)
"""


def run(effort: Effort) -> Table:
    """Measure each import several times."""
    samples: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(effort.passes + 1):
        for name, statement in IMPORTS.items():
            samples[name].append(_seconds(statement))
    medians = {name: statistics.median(taken[1:]) for name, taken in samples.items()}
    rows = [[name, millis(median), f"{plain(median / medians[OURS])}x"] for name, median in medians.items()]
    goal = Goal(
        text=f"`import endstop` costs at most {plain(MOST_SECONDS * 1e3)} ms",
        measured=medians[OURS] * 1e3,
        allowed=MOST_SECONDS * 1e3,
    )
    return Table(header=["", "CPU", "of endstop"], rows=rows, goals=[goal])


def _seconds(statement: str) -> float:
    command = [sys.executable, "-c", SCRIPT.format(statement=statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
