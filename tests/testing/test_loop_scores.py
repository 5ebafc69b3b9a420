"""The scores of loop detectors: how a file is read, what becomes a step, what counts as found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from endstop._loops import Action, AgentMessage, LoopPolicy, Outcome, Step, ToolBatch, UserTurn
from endstop.testing.loops import (
    DETECTORS,
    EndstopDetector,
    EqualCycle,
    LoopDataError,
    Share,
    Trajectory,
    read_trajectories,
    render_table,
    score,
    score_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Record = dict[str, Any]
NO_LOOP: Record = {"loop": False, "start": None, "kind": None, "hard_negative": False}


def said(node: str, text: str) -> Record:
    return {"kind": "message", "node": node, "name": None, "args": None, "text": text}


def called(name: str, args: object, node: str = "agent") -> Record:
    return {"kind": "tool_call", "node": node, "name": name, "args": args, "text": ""}


def returned(of: int | None, text: str) -> Record:
    return {"kind": "tool_result", "node": "tool", "name": "tool", "args": None, "text": text, "of": of}


def asked(*pairs: tuple[str, str]) -> list[Record]:
    """A user, then calls of `bash`, each with its result: calls stand at 1, 3, 5, ..."""
    steps = [said("user", "please")]
    for command, result in pairs:
        steps += [called("bash", {"command": command}), returned(len(steps), result)]
    return steps


def run(steps: list[Record], *, outcome: str = "fail", **label: object) -> Record:
    return {"id": "r", "source": "s", "outcome": outcome, "steps": steps, "label": NO_LOOP | label}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """A function that writes records, or lines as they stand, to a file and gives its path."""

    def written(*records: Record | str) -> Path:
        path = tmp_path / "runs.jsonl"
        path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records), "utf-8")
        return path

    return written


def steps_of(write: Any, *steps: Record) -> Trajectory:
    [trajectory] = read_trajectories(write(run(list(steps))))
    return trajectory


def outcome(name: str, args: Record, result: str | None, **declared: bool) -> Outcome:
    return Outcome(action=Action(name=name, arguments=args, **declared), result=result)


# --- reading --------------------------------------------------------------------------------------------------------


def test_calls_get_their_results_and_users_their_turns(write: Any) -> None:
    """A result names its call; several results of one call are one text; a step knows where it stands in the record."""
    read = steps_of(
        write, said("human", "go"), called("ls", {"d": "."}), returned(1, "a"), said("bot", "hm"), returned(1, "b")
    )
    assert read.steps == (
        UserTurn(text="go"),
        ToolBatch(outcomes=(outcome("ls", {"d": "."}, "a\nb"),)),
        AgentMessage(text="hm", author="bot"),
    )
    assert read.indexes == (0, 1, 3)


def test_calls_of_one_node_that_follow_each_other_are_a_batch(write: Any) -> None:
    """Those of another node are a step of their own."""
    read = steps_of(write, called("a", {}), called("b", "raw"), called("c", {}, "other"), returned(1, "x"))
    batch = ToolBatch(outcomes=(outcome("a", {}, None), Outcome(action=Action(name="b", arguments="raw"), result="x")))
    assert read.steps == (batch, ToolBatch(outcomes=(outcome("c", {}, None),)))
    assert read.indexes == (0, 2)


def test_a_call_without_result_is_answered_by_whom_it_names(write: Any) -> None:
    """A delegate answers with messages, which are then no messages of their own; thinking is skipped."""
    read = steps_of(
        write,
        called("Surfer", {"do": "look"}, "Lead"),
        said("Lead (thought)", "next: Surfer"),
        said("Surfer", "I looked."),
        said("Surfer", "And saw."),
        called("Surfer", {"do": "stop"}, "Lead"),
        said("Lead", "Done."),
        returned(None, "stray"),
    )
    assert read.steps == (
        ToolBatch(outcomes=(outcome("Surfer", {"do": "look"}, "I looked.\nAnd saw."),)),
        ToolBatch(outcomes=(outcome("Surfer", {"do": "stop"}, None),)),
        AgentMessage(text="Done.", author="Lead"),
    )


def test_what_a_tool_declares_is_read_off_its_name_and_result(write: Any) -> None:
    """Thinking is repeatable, a verb such as get only reads, and a result may say that there is no such tool."""
    read = steps_of(
        write,
        called("think", {"thought": "x"}),
        called("get_order", {}),
        called("getaway", None),
        called("reflect", {}),
        returned(3, "Unknown tool name: reflect"),
    )
    assert read.steps == (
        ToolBatch(
            outcomes=(
                outcome("think", {"thought": "x"}, None, repeatable=True),
                outcome("get_order", {}, None, read_only=True),
                outcome("getaway", {}, None),
                outcome("reflect", {}, "Unknown tool name: reflect", unknown=True),
            )
        ),
    )


def test_empty_lines_are_skipped(write: Any) -> None:
    """A file may end with one."""
    assert len(read_trajectories(write(run([]), "", run([]), "  "))) == 2


@pytest.mark.parametrize(
    ("record", "field", "message"),
    [
        ("{", "the line", "the line is '{'; it must be JSON"),
        ("[]", "the line", r"the line is \[\]; it must be an object"),
        (run([]) | {"id": 7}, "id", "id is 7; it must be text"),
        (run([], outcome="won"), "outcome", "outcome is 'won'; it must be success, fail or unknown"),
        (run([]) | {"steps": {}}, "steps", "steps is {}; it must be a list"),
        (run([]) | {"label": None}, "label", "label is None; it must be an object"),
        (run([], loop="yes"), "label.loop", "label.loop is 'yes'; it must be true or false"),
        (run([], start=True), "label.start", "label.start is True; it must be the index of a step, or null"),
        (run([], loop=True, start=0), "label.start", "label.start is 0; it must be the index of one of the 0 steps"),
        (run(["x"]), r"steps[0]", r"steps\[0\] is 'x'; it must be an object"),
        (run([said("a", "b") | {"kind": "note"}]), "steps[0].kind", "is 'note'; it must be tool_call, message or"),
        (run([called("a", [1])]), "steps[0].args", r"steps\[0\].args is \[1\]; it must be an object"),
        (
            run([said("a", "x"), said("a", "x" * 99) | {"text": ["x" * 99]}]),
            "steps[1].text",
            r"x\.\.\.; it must be text",
        ),
    ],
)
def test_a_line_that_does_not_fit_is_named(write: Any, record: Record | str, field: str, message: str) -> None:
    """With the file, the number of the line, the field, the value and what it must be."""
    path = write(run([]), record)
    with pytest.raises(LoopDataError, match=message) as caught:
        read_trajectories(path)
    assert (caught.value.code, caught.value.path, caught.value.line) == ("loop_data", path, 2)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}, line 2: {field} is ")


# --- scoring --------------------------------------------------------------------------------------------------------


class AlarmsAt:
    """Alarms at the same steps of every trajectory."""

    def __init__(self, *alarms: int) -> None:
        self._alarms = alarms

    def alarms(self, steps: Sequence[Step]) -> Sequence[int]:
        return [alarm for alarm in self._alarms if alarm < len(steps)]


def test_an_alarm_at_or_after_the_start_finds_a_loop_and_the_delay_counts_actions(write: Any) -> None:
    """The third of three equal calls comes two actions after the first."""
    runs = read_trajectories(write(run(asked(*[("ls", "x")] * 5), loop=True, start=3, kind="exact")))
    scored = score("at the end", AlarmsAt(5), runs)
    assert (scored.recall, scored.precision) == (Share(part=1, whole=1), Share(part=1, whole=1))
    assert scored.median_delay_actions == 3
    assert score("at the start", AlarmsAt(2), runs).median_delay_actions == 0


def test_an_alarm_before_the_start_is_a_false_one(write: Any) -> None:
    """The loop may still be found by a later alarm."""
    runs = read_trajectories(write(run(asked(*[("ls", "x")] * 5), loop=True, start=5, kind="exact")))
    early = score("early", AlarmsAt(1), runs)
    assert (early.recall, early.precision) == (Share(part=0, whole=1), Share(part=0, whole=1))
    both = score("early and late", AlarmsAt(1, 4), runs)
    assert (both.recall, both.precision) == (Share(part=1, whole=1), Share(part=1, whole=2))


def test_a_loop_whose_start_is_not_known_is_found_by_any_alarm(write: Any) -> None:
    """It has no delay."""
    runs = read_trajectories(write(run(asked(("ls", "x")), loop=True, start=None, kind="poll")))
    found = score("any", AlarmsAt(0), runs)
    assert (found.recall, found.precision) == (Share(part=1, whole=1), Share(part=1, whole=1))
    assert found.median_delay_actions is None


def test_the_delay_of_a_message_loop_counts_messages(write: Any) -> None:
    """Turns of the user are no actions."""
    talk = [said("bot", "wait"), said("user", "ok")] * 4
    runs = read_trajectories(write(run(talk, loop=True, start=0, kind="message")))
    assert score("talk", AlarmsAt(4), runs).median_delay_actions == 2


def test_false_alarms_are_counted_apart_on_successes_and_hard_negatives(write: Any) -> None:
    """A run with a loop that succeeded is in neither."""
    once = asked(("ls", "x"))
    runs = read_trajectories(
        write(
            run(once, outcome="success"),
            run([], outcome="success", hard_negative=True),
            run(once, outcome="unknown"),
            run(once, outcome="success", loop=True, start=1, kind="near"),
            run(once, loop=True, start=1, kind="semantic"),
            run([*once, *once], loop=True, start=1, kind="message"),
        )
    )
    scored = score("always", AlarmsAt(1), runs)
    assert scored.precision == Share(part=3, whole=5)
    assert scored.recall == Share(part=3, whole=3)
    assert scored.recall_on_tool_loops == Share(part=1, whole=1)
    assert scored.false_alarms_on_successes == Share(part=1, whole=2)
    assert scored.false_alarms_on_hard_negatives == Share(part=0, whole=1)
    assert set(scored.recall_by_kind) == {"near", "semantic", "message"}
    assert scored.step_us >= 0


def test_a_share_of_nothing_has_no_value() -> None:
    """And is shown as such."""
    assert (Share(part=0, whole=0).value, str(Share(part=0, whole=0))) == (None, "-")
    assert str(Share(part=1, whole=3)) == "0.333 (1/3)"


def alarms(name: str, *pairs: tuple[str, str]) -> Sequence[int]:
    steps = [ToolBatch(outcomes=(outcome("bash", {"command": command}, result),)) for command, result in pairs]
    return DETECTORS[name].alarms([UserTurn(text="go"), AgentMessage(text="ok"), *steps])


def test_the_signature_rule_is_blind_after_80_characters() -> None:
    """Three equal openings are enough, whatever follows and whatever comes back."""
    name = "last 3 signatures, cut at 80"
    assert alarms(name, *((f"{'x' * 90}{number}", f"{number}") for number in range(4))) == [4, 5]
    assert alarms(name, *((f"{'x' * 50}{number}", "") for number in range(4))) == []


def test_three_equal_calls_are_compared_whole() -> None:
    """Results don't matter."""
    name = "3 equal calls"
    assert alarms(name, *((f"{'x' * 90}{number}", "") for number in range(4))) == []
    assert alarms(name, *(("ls", f"{number}") for number in range(3))) == [4]


def test_five_rounds_of_a_cycle_of_up_to_five() -> None:
    """A cycle of two is seen at the tenth call, one of six never."""
    name = "cycle of 1-5, 5 times"
    assert alarms(name, *[("a", ""), ("b", "")] * 5) == [11]
    assert alarms(name, *((f"{number % 6}", "") for number in range(60))) == []


def test_four_equal_pairs_need_equal_results() -> None:
    """One new result begins again."""
    name = "4 equal calls and results"
    assert alarms(name, *[("a", "x")] * 4) == [5]
    assert alarms(name, *[("a", "x")] * 3, ("a", "y"), *[("a", "x")] * 3) == []


def test_raw_arguments_are_compared_as_they_stand() -> None:
    """A model may have written no JSON object."""
    step = ToolBatch(outcomes=(Outcome(action=Action(name="a", arguments="raw"), result=""),))
    assert DETECTORS["3 equal calls"].alarms([step] * 3) == [2]


def test_our_detector_alarms_at_every_finding() -> None:
    """The first finding and the persistent one."""
    assert alarms("endstop", *[("a", "x")] * 8) == [4, 7]
    early = EndstopDetector(policy=replace(LoopPolicy(), repeats=2, patience=1))
    assert early.alarms([ToolBatch(outcomes=(outcome("a", {}, "x"),))] * 3) == [1, 2]


def test_a_file_is_scored_by_all_detectors_and_shown_as_tables(write: Any) -> None:
    """The names of the rules, shares with their counts, and the kinds of loop."""
    alternating = [("a", "1"), ("b", "2")] * 6
    path = write(
        run(asked(*[("ls", "x")] * 6), loop=True, start=1, kind="exact"),
        run(asked(*alternating), loop=True, start=1, kind="cycle"),
        run(asked(*((f"{'x' * 90}{number}", f"{number}") for number in range(6))), outcome="success"),
    )
    scores = score_file(path)
    assert [one.name for one in scores] == list(DETECTORS)
    assert [one.recall.part for one in scores] == [1, 1, 2, 1, 2]
    assert [one.false_alarms_on_successes.part for one in scores] == [1, 0, 0, 0, 0]
    lines = render_table(tuple(replace(one, step_us=1.5) for one in scores))
    assert [line.split("|")[1].strip() for line in lines if line] == [
        *("detector", "-" * 28, *DETECTORS),
        *("loops found", "-" * 28, *DETECTORS),
    ]
    assert [cell.strip() for cell in lines[6].split("|")[1:-1]] == [
        "endstop",
        "1.000 (2/2)",
        "1.000 (2/2)",
        "1.000 (2/2)",
        "0.000 (0/1)",
        "-",
        "3",
        "1.5",
    ]
    assert [cell.strip() for cell in lines[-1].split("|")[1:-1]] == ["endstop", "1/1", "1/1"]


def test_a_detector_without_a_hit_has_no_delay(write: Any) -> None:
    """Other detectors than ours are scored by the same function."""
    path = write(run(asked(("ls", "x")), loop=True, start=1, kind="exact"))
    [scored] = score_file(path, {"never": EqualCycle(key=str, times=9)})
    assert render_table([scored])[2].split("|")[7].strip() == "-"
