"""`endstop cutover` says what the kernel would serve, what it would do otherwise, and what it has served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from endstop.cli import main
from endstop.cutover import SqliteTurnLedger, TurnRecord, record
from tests.loaded import modules_forgotten

AGENTS = """
from endstop.cutover import create_agent
from tests.cutover.clerks import Counted

print("loaded")
real = Counted()
agent = create_agent(real.model, [real.shop.look], name="finder")
refused = create_agent(real.model, [real.shop.look], interrupt_before=["tools"])
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cutover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, run in a folder with agents; its exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moving_agents.py").write_text(AGENTS, encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str, str]:
        with modules_forgotten("moving_agents"):
            code = main(["cutover", *arguments])
        written = capsys.readouterr()
        return code, written.out, written.err

    return run


def test_check_says_that_the_kernel_serves_an_agent(cutover: Command) -> None:
    code, out, err = cutover("check", "moving_agents.py:agent")
    assert code == 0
    assert out.startswith("moving_agents.py:agent: the kernel serves its turns\n")
    assert "at recursion_limit 25: 12 rounds can finish, the model is asked at most 13 times" in out
    assert err == "loaded\n"


def test_check_names_what_is_in_the_way_with_its_remedy(cutover: Command) -> None:
    code, out, _ = cutover("check", "moving_agents.py:refused")
    assert code == 1
    assert "  interrupt_before: the graph stops before tools" in out
    assert "ask for approval in the agent" in out


def test_check_writes_json_for_programs(cutover: Command) -> None:
    _, out, _ = cutover("check", "moving_agents.py:refused", "--json")
    found = json.loads(out)
    assert found["served"] is False
    assert [refusal["code"] for refusal in found["refusals"]] == ["interrupt_before"]


def test_check_of_what_is_no_graph_says_so(cutover: Command) -> None:
    code, out, err = cutover("check", "moving_agents.py:real")
    assert (code, out) == (2, "")
    assert "compiled LangGraph graph" in err


def test_replay_prints_a_report_and_writes_a_page(cutover: Command, tmp_path: Path) -> None:
    _tape(tmp_path / "turns.jsonl")
    code, out, _ = cutover("replay", "turns.jsonl", "moving_agents.py:agent", "--html", "report.html")
    assert code == 0, out
    assert out.startswith("1 turns: 1 same")
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_replay_counts_refused_turns_as_differences_where_that_is_asked_for(cutover: Command, tmp_path: Path) -> None:
    _tape(tmp_path / "turns.jsonl")
    assert cutover("replay", "turns.jsonl", "moving_agents.py:refused")[0] == 0
    code, out, _ = cutover("replay", "turns.jsonl", "moving_agents.py:refused", "--strict", "--json")
    assert code == 1
    assert json.loads(out)["turns"][0]["refused_by"] == ["interrupt_before"]


def test_replay_of_what_is_no_tape_says_so(cutover: Command, tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text("no tape\n", encoding="utf-8")
    code, _, err = cutover("replay", "turns.jsonl", "moving_agents.py:agent")
    assert code == 2
    assert "endstop: error [tape]" in err


def test_report_says_whether_a_window_is_clean(cutover: Command, tmp_path: Path) -> None:
    turn = TurnRecord(
        surface="invocation.run", served_by="kernel", route="kernel", switch="on", run_id="1", duration_ms=2.0, rounds=1
    )
    SqliteTurnLedger(tmp_path / "turns.db").add(turn)
    code, out, _ = cutover("report", "turns.db")
    assert code == 0
    assert "clean: 1 turn on the kernel" in out
    code, out, _ = cutover("report", "turns.db", "--until", "2026-01-01", "--json")
    assert code == 1
    assert json.loads(out)["surfaces"] == []


def test_report_refuses_a_time_that_is_none(cutover: Command, tmp_path: Path) -> None:
    SqliteTurnLedger(tmp_path / "turns.db")
    code, _, err = cutover("report", "turns.db", "--since", "yesterday")
    assert code == 2
    assert "--since='yesterday' cannot be used" in err


def test_report_of_a_ledger_that_is_not_there_makes_none(cutover: Command, tmp_path: Path) -> None:
    code, _, err = cutover("report", "turns.db")
    assert code == 2
    assert "turns.db" in err
    assert not (tmp_path / "turns.db").exists()


def _tape(path: Path) -> None:
    """A tape with one turn of the agent."""
    namespace: dict[str, Any] = {}
    exec(compile(AGENTS.replace('print("loaded")', ""), "agents", "exec"), namespace)
    with record(path):
        namespace["agent"].invoke({"messages": [("user", "Where is the key?")]})
