"""Every example runs as it stands, without a network, and says what it is there to show."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from endstop import Agent

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.py"))

MAX_LINES = 60

SAYS = {
    "limits.py": [
        "[TRUNCATED: max_model_rounds is used up (4 of 4); this is a partial answer from what was found so far]",
        "limit: max_model_rounds, used 4 of 4",
        "[TRUNCATED: max_model_rounds is used up (4 of 4); this is the last text of an unfinished run]",
        "limit_exceeded: max_tool_calls is used up (1 of 1); spent 2 rounds",
    ],
    "quickstart.py": ["It will be 21 degrees in Oslo.", "completed after 2 rounds and 1 tool call"],
    "resume.py": [
        "[TRUNCATED: max_model_rounds is used up (2 of 2); this is a partial answer from what was found so far]",
        "resume: max_model_rounds ",
        "Two pages are read: three stops in all.",
        "4 rounds, 2 tool calls in all",
    ],
    "shared_budget.py": ["What I found about motors.", "24 of 24 model calls"],
    "stream.py": [
        "[search: Three pages about endstops.]",
        "An endstop is a switch. It stops the axis of a machine.",
        "completed",
        "left early; the history has 4 messages",
    ],
    "structured_output.py": [
        "2 x lamp, high, bought on 31.01.2030",
        "requests: 2",
        "output_invalid: ",
    ],
    "tools.py": [
        "price: ok: 40.0",
        "price: error: LookupError: there is no 'sofa'; there are lamp, chair",
        "order: error: The arguments do not fit: article",
        'order: ok: {"article":"lamp","pieces":2,"number":4711}',
        "executions: {'price': 2, 'order': 1}",
    ],
}
"""Example -> what it prints, in this order, among other things."""


@pytest.fixture(autouse=True)
def own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that runs is this one again after an example."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.mark.parametrize("name", FILES)
def test_an_example_shows_what_it_is_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as a program, it prints what it promises."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    at = 0
    for text in SAYS[name]:
        assert text in printed[at:]
        at = printed.index(text, at) + len(text)


@pytest.mark.parametrize("name", FILES)
def test_an_example_is_short_and_says_what_it_is(name: str) -> None:
    """It is read in a minute."""
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) < MAX_LINES
    assert lines[0].startswith('"""')


@pytest.mark.parametrize("name", sorted(set(FILES) - {"shared_budget.py"}))
def test_an_example_has_an_agent_for_the_command_line(name: str) -> None:
    """`endstop run examples/limits.py:agent "..."` is how to watch it."""
    assert isinstance(runpy.run_path(str(EXAMPLES / name))["agent"], Agent)
