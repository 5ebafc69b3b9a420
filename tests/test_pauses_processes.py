"""A pause outlives its process: saved to a file by one that is killed, answered from another.

Each leg is a process of its own, whose tools append a line to a file for all that they do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from endstop import AgentResult

PROGRAM = '''
import json, sys
from pathlib import Path

import anyio
from endstop import Agent, AgentResult, Interrupt, PlanLimits, ToolContext, ask_user, tool
from endstop.models.scripted import ScriptedModel, call, forever, turn

WORK = Path(sys.argv[1])


def note(what: str) -> None:
    with (WORK / "done").open("a") as file:
        file.write(what + "\\n")


def answer(request):
    """The next turn from the conversation alone: a process that starts anew has no script of its own."""
    note("model")
    turns = sum(message.kind == "model" for message in request.messages)
    if request.tools and request.tools[0].name == "pay" and turns == 0:
        return turn(calls=[call("pay", {"amount": 9}, call_id="pay"), call("look", {"n": 9}, call_id="look")])
    if turns == 0:
        buy, ask = call("buyer", {"task": "buy"}, call_id="b"), call("ask_user", {"question": "name?"}, call_id="ask")
        return turn(calls=[buy, call("look", {"n": 1}, call_id="look"), call("book", call_id="book"), ask])
    return "bought" if request.tools[0].name == "pay" else "all is done"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    note(f"pay {amount}")
    return f"paid {amount}"


def look(n: int) -> str:
    """Look."""
    note(f"look {n}")
    return f"page {n}"


def book(context: ToolContext) -> str:
    """Book, after a question."""
    if not context.answers:
        raise Interrupt("seats?", schema={"type": "integer"})
    note(f"book {context.answers[0]}")
    return "booked"


model = ScriptedModel([forever(answer)])
buyer = Agent(model, tools=[pay, look], name="buyer")
agent = Agent(model, tools=[buyer.as_tool(), book, ask_user, look], name="boss", limits=PlanLimits(max_model_calls=8))


async def main() -> None:
    saved = WORK / "run.json"
    if saved.exists():
        answers = json.loads(sys.argv[2])
        result = await agent.resume(AgentResult.from_json(saved.read_text()), answers=answers)
    else:
        result = await agent.run("go", run_id="r")
    new = WORK / "new.json"
    new.write_text(result.to_json())
    new.replace(saved)
    print("saved", flush=True)
    sys.stdin.read()


anyio.run(main)
'''


def leg(work: Path, answers: dict[str, object] | None = None) -> AgentResult[str]:
    """Run one leg in a process of its own, which is killed as soon as it has saved where it is."""
    program = work / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(work), json.dumps(answers or {})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return AgentResult.from_json((work / "run.json").read_text())


def done(work: Path) -> list[str]:
    """What was done so far, by all processes together, sorted: parallel calls have no order."""
    return sorted((work / "done").read_text().split("\n")[:-1])


FIRST = ["look 1", "look 9", "model", "model"]
"""What the first process does: one request of the run, one of its child, and what needs nobody's answer."""

APPROVAL, SEATS, NAME = "r/b:pay:approval", "r:book:0", "r:ask:0"


def test_a_pause_is_answered_from_a_second_process_after_the_first_was_killed(tmp_path: Path) -> None:
    """Together: what had run is not run again, what waited runs once, and every unit is counted once."""
    paused = leg(tmp_path)
    assert done(tmp_path) == FIRST
    assert {pause.pause_id for pause in paused.pauses} == {APPROVAL, SEATS, NAME}
    result = leg(tmp_path, {APPROVAL: {"type": "approve"}, SEATS: 2, NAME: "Ada"})
    assert (result.stop_reason, result.text) == ("completed", "all is done")
    assert done(tmp_path) == sorted([*FIRST, "pay 9", "book 2", "model", "model"])
    assert result.spent.model_calls == 4
    assert result.spent.tools == {"buyer": 1, "pay": 1, "look": 2, "book": 1, "ask_user": 1}


@pytest.mark.parametrize("order", [(APPROVAL, SEATS, NAME), (NAME, APPROVAL, SEATS)], ids=["child first", "child amid"])
def test_each_answer_may_come_in_a_process_of_its_own(order: tuple[str, ...], tmp_path: Path) -> None:
    """Each of which is killed: the next goes on from the file."""
    answers = {APPROVAL: {"type": "edit", "arguments": {"amount": 3}}, SEATS: 2, NAME: "Ada"}
    result = leg(tmp_path)
    for number, pause_id in enumerate(order, start=1):
        result = leg(tmp_path, {pause_id: answers[pause_id]})
        assert {pause.pause_id for pause in result.pauses} == set(order[number:])
    assert result.text == "all is done"
    assert done(tmp_path) == sorted([*FIRST, "pay 3", "book 2", "model", "model"])
    assert result.spent.model_calls == 4
    assert result.spent.tools == {"buyer": 1, "pay": 1, "look": 2, "book": 1, "ask_user": 1}
