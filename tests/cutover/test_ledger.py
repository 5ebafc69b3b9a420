"""The ledger: one record a turn, kept by threads and processes that may be killed, and what a window adds up to."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop import ConfigError, Spent, StateError
from endstop.cutover.ledger import (
    Fallbacks,
    LedgerError,
    MemoryTurnLedger,
    SqliteTurnLedger,
    TurnLedger,
    TurnRecord,
    default_ledger,
    fallbacks,
    keep,
    open_ledger,
    spent_amounts,
    use_ledger,
)
from endstop.cutover.switches import Route, Surface

RUN: Surface = "invocation.run"
STREAM: Surface = "invocation.stream"
START = datetime(2026, 11, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TURN = TurnRecord(
    surface=RUN, served_by="kernel", route="kernel", switch="on", run_id="r", duration_ms=12.5, rounds=2, at=START
)
FELL_BACK = replace(TURN, served_by="legacy", refusals=("debug",))
OFF = replace(TURN, served_by="legacy", route="legacy", switch="off")
SHADOW = replace(TURN, served_by="legacy", route="shadow", switch="shadow")


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> TurnLedger:
    """An empty ledger of each kind."""
    return MemoryTurnLedger() if request.param == "memory" else SqliteTurnLedger(tmp_path / "turns.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of an empty ledger."""
    SqliteTurnLedger(tmp_path / "turns.db")
    return tmp_path / "turns.db"


def at(minutes: int, record: TurnRecord = TURN) -> TurnRecord:
    """The record as that of a turn so many minutes after the start."""
    return replace(record, at=START + minutes * MINUTE, run_id=str(minutes))


@st.composite
def turns(draw: st.DrawFn) -> TurnRecord:
    """Any turn that can have been."""
    route: Route = draw(st.sampled_from(get_args(Route)))
    codes = st.lists(st.sampled_from(["debug", "node_cache", "input:command"]), max_size=2).map(tuple)
    refusals = draw(codes)
    return TurnRecord(
        surface=draw(st.sampled_from(get_args(Surface))),
        served_by="kernel" if route == "kernel" and not refusals else "legacy",
        route=route,
        switch=draw(st.sampled_from(["off", "canary=0.05", "on"])),
        refusals=refusals,
        run_id=draw(st.text(max_size=5)),
        duration_ms=draw(st.floats(0, 1e9)),
        rounds=draw(st.none() | st.integers(0, 50)),
        error=draw(st.none() | st.sampled_from(["ModelError", "ValueError"])),
        cancelled=draw(st.booleans()),
        spent=draw(
            st.dictionaries(st.text(max_size=5), st.integers() | st.floats(0, 1e9) | st.just("0.25"), max_size=3)
        ),
        differences=draw(st.lists(st.sampled_from(["text", "calls"]), max_size=2).map(tuple)),
        agent=draw(st.text(max_size=5)),
        thread_id=draw(st.none() | st.text(max_size=5)),
        at=START + draw(st.integers(0, 9)) * MINUTE,
    )


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("surface", "invocation.runs"),
        ("at", datetime(2026, 11, 1)),
        ("duration_ms", -1.0),
        ("duration_ms", float("nan")),
        ("spent", {"cost": "much"}),
        ("spent", {"tokens": True}),
        ("spent", {"cost": float("inf")}),
        ("served_by", "legacy"),
        ("refusals", ("debug",)),
        ("route", "shadow"),
    ],
)
def test_a_record_that_no_turn_can_have_is_refused(field: str, value: object) -> None:
    """It would stay in the ledger for ever."""
    with pytest.raises(ConfigError):
        replace(TURN, **{field: value})  # type: ignore[arg-type]  # what an untyped caller may write


def test_what_a_run_spent_is_kept_as_data() -> None:
    """Money exactly, as text; what is 0 is left out."""
    spent = Spent(model_rounds=2, input_tokens=70, output_tokens=30, cost=Decimal("0.10"), tools={"look": 3})
    amounts = spent_amounts(spent)
    assert amounts == {"model_rounds": 2, "tokens": 100, "output_tokens": 30, "cost": "0.10", "tool:look": 3}
    assert json.loads(json.dumps(replace(TURN, spent=amounts).spent)) == amounts


def test_a_record_keeps_what_was_spent_when_it_was_made() -> None:
    """The caller may go on counting in the same mapping."""
    spent: dict[str, int | float | str] = {"tokens": 1}
    record = replace(TURN, spent=spent)
    spent["tokens"] = 2
    assert record.spent == {"tokens": 1}


# -- a ledger of either kind -----------------------------------------------------------------------


def test_records_come_back_as_they_were_oldest_first(ledger: TurnLedger) -> None:
    """All fields of them, in the order of their times."""
    full = replace(
        FELL_BACK,
        refusals=("debug", "input:command"),
        rounds=None,
        error="ValueError",
        cancelled=True,
        spent={"tokens": 7, "seconds": 0.5, "cost": "0.10"},
        differences=("text",),
        agent="\ud800 finder",
        thread_id="t",
        at=datetime(2026, 11, 1, 2, tzinfo=timezone(timedelta(hours=1))),
    )
    for record in (at(90), full, at(0)):
        ledger.add(record)
    assert [record.at for record in ledger.records()] == [START, full.at, START + 90 * MINUTE]
    kept = next(record for record in ledger.records() if record.at == full.at)
    assert replace(kept, agent="") == replace(full, agent="")
    assert kept.agent.endswith(" finder")


def test_a_window_has_its_beginning_and_not_its_end(ledger: TurnLedger) -> None:
    """So that windows that follow each other share no turn and lose none."""
    for minute in range(4):
        ledger.add(at(minute))
        ledger.add(at(minute, replace(OFF, surface=STREAM)))
    found = ledger.records(RUN, since=START + MINUTE, until=START + 3 * MINUTE)
    assert [(record.surface, record.run_id) for record in found] == [(RUN, "1"), (RUN, "2")]
    assert len(list(ledger.records(since=START + 2 * MINUTE))) == 4
    assert ledger.fallbacks(RUN, until=START + 3 * MINUTE).turns == 3


def test_a_window_is_asked_for_with_its_time_zone(ledger: TurnLedger) -> None:
    """And for a surface that there is; both when it is asked for, not when it is read."""
    nowhere = datetime(2026, 11, 1)
    wrong: Surface = "run"  # type: ignore[assignment]  # what an untyped caller may ask for
    for ask in (ledger.records, ledger.fallbacks):
        with pytest.raises(ConfigError, match="since"):
            ask(RUN, since=nowhere)
        with pytest.raises(ConfigError, match="until"):
            ask(RUN, until=nowhere)
        with pytest.raises(ConfigError, match="surface"):
            ask(wrong)


def test_threads_that_add_at_once_lose_nothing(ledger: TurnLedger) -> None:
    """Each record is there exactly once."""
    workers, each = 6, 20

    def work(worker: int) -> None:
        for number in range(each):
            ledger.add(replace(TURN, run_id=f"{worker}/{number}"))

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    expected = {f"{worker}/{number}" for worker in range(workers) for number in range(each)}
    assert Counter(record.run_id for record in ledger.records()) == Counter(expected)


# -- what a window adds up to ----------------------------------------------------------------------


def test_fallbacks_tell_what_fell_back_from_what_was_not_asked_for() -> None:
    """A switch that is off and a thread outside the canary ask the kernel for nothing."""
    both = replace(FELL_BACK, refusals=("node_cache", "debug"))
    outside = replace(OFF, switch="canary=0.05")
    found = Fallbacks.of(RUN, [TURN, FELL_BACK, both, OFF, outside, SHADOW, replace(FELL_BACK, surface=STREAM)])
    assert (found.turns, found.on_kernel, found.fell_back, len(found)) == (6, 1, 2, 2)
    assert list(found.by_code.items()) == [("debug", 2), ("node_cache", 1)]
    assert not found.is_clean
    assert found.problems == ("2 fell back",)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([], "no turn ran on the kernel to its end"),
        ([OFF, SHADOW], "no turn ran on the kernel to its end"),
        ([replace(TURN, cancelled=True)], "no turn ran on the kernel to its end"),
        ([TURN, replace(TURN, error="ModelError")], "1 failed on the kernel"),
        ([TURN, replace(SHADOW, differences=("text", "calls"))], "replays differ (calls, text)"),
    ],
    ids=["nothing", "nothing asked", "broken off", "failed", "differs"],
)
def test_a_window_in_which_nothing_fell_back_may_still_prove_nothing(records: list[TurnRecord], problem: str) -> None:
    """A failure never counts as clean, and neither does silence."""
    found = Fallbacks.of(RUN, records)
    assert not found
    assert not found.is_clean
    assert found.problems == (problem,)


def test_a_window_is_clean_when_turns_ran_and_nothing_went_wrong() -> None:
    """What the legacy body failed at by itself is not the kernel's, nor is what a caller broke off."""
    found = Fallbacks.of(RUN, [TURN, replace(OFF, error="ValueError"), SHADOW, replace(TURN, cancelled=True)])
    assert found.is_clean
    assert (found.on_kernel, found.cancelled, found.errors) == (2, 1, {})


@given(st.lists(turns(), max_size=12), st.integers(0, 10))
def test_windows_that_follow_each_other_add_up(records: list[TurnRecord], cut: int) -> None:
    """Also in a ledger that has forgotten some of them, as far as it claims to know."""
    middle = START + cut * MINUTE
    for surface in get_args(Surface):
        whole = Fallbacks.of(surface, records)
        before = Fallbacks.of(surface, [record for record in records if record.at < middle])
        after = Fallbacks.of(surface, [record for record in records if record.at >= middle])
        assert before + after == whole
        small = MemoryTurnLedger(max_records=3)
        for record in records:
            small.add(record)
        assert small.fallbacks(surface) == whole
        for found, exact in (
            (small.fallbacks(surface, until=middle), before),
            (small.fallbacks(surface, since=middle), after),
        ):
            assert (
                found == exact if not found.forgotten else found.turns <= exact.turns <= found.turns + found.forgotten
            )


@given(turns())
def test_a_turn_that_fell_back_was_asked_of_the_kernel_and_refused(record: TurnRecord) -> None:
    """Nothing else is a fall-back, and a turn of the kernel is none."""
    found = Fallbacks.of(record.surface, [record])
    assert found.fell_back == (record.route == "kernel" and bool(record.refusals))
    assert found.fell_back + found.on_kernel == (record.route == "kernel")


# -- the ledger of the process ---------------------------------------------------------------------


@pytest.fixture
def _restored() -> Iterator[None]:
    """The ledger of the process is what it was before the test."""
    before = default_ledger()
    yield
    use_ledger(before)


@pytest.mark.usefixtures("_restored")
def test_fallbacks_reads_the_ledger_of_the_process() -> None:
    """Unless another is named."""
    mine, other = MemoryTurnLedger(), MemoryTurnLedger()
    before = default_ledger()
    assert use_ledger(mine) is before
    default_ledger().add(FELL_BACK)
    assert fallbacks("invocation.run").by_code == {"debug": 1}
    assert fallbacks("invocation.run", ledger=other).turns == 0
    assert fallbacks("invocation.run", since=START + MINUTE).turns == 0


@pytest.mark.parametrize("wrong", [None, "turns.db", MemoryTurnLedger])
def test_what_is_no_ledger_is_refused_at_once(wrong: object) -> None:
    """And not by the first turn."""
    with pytest.raises(ConfigError, match="use an object with"):
        use_ledger(wrong)  # type: ignore[arg-type]  # what an untyped caller may give


# -- in memory -------------------------------------------------------------------------------------


def test_a_ledger_in_memory_forgets_turns_and_not_their_counts() -> None:
    """A process that lives long does not grow, and still knows what fell back in all."""
    ledger = MemoryTurnLedger(max_records=2)
    for minute, record in enumerate([FELL_BACK, replace(TURN, error="ModelError"), TURN, OFF]):
        ledger.add(at(minute, record))
    assert [record.run_id for record in ledger.records()] == ["2", "3"]
    found = ledger.fallbacks(RUN)
    assert (found.turns, found.on_kernel, found.by_code, found.errors) == (4, 2, {"debug": 1}, {"ModelError": 1})
    assert found.forgotten == 0
    assert ledger.fallbacks(RUN, since=START + 2 * MINUTE).is_clean
    assert ledger.fallbacks(STREAM).turns == 0


def test_a_window_that_begins_among_forgotten_turns_is_not_clean() -> None:
    """The ledger cannot know, and says of how many turns."""
    ledger = MemoryTurnLedger(max_records=1)
    for minute in range(3):
        ledger.add(at(minute))
    found = ledger.fallbacks(RUN, since=START + MINUTE)
    assert (found.turns, found.forgotten) == (1, 2)
    assert found.problems == ("2 may belong to the window but are no longer known one by one",)
    assert ledger.fallbacks(RUN, until=START).forgotten == 0


@pytest.mark.parametrize("wrong", [0, -1, True, None, 1.5])
def test_a_ledger_in_memory_keeps_at_least_one_record(wrong: object) -> None:
    """A number that is none is refused."""
    with pytest.raises(ConfigError, match="max_records"):
        MemoryTurnLedger(max_records=wrong)  # type: ignore[arg-type]  # what an untyped caller may give


# -- in a file -------------------------------------------------------------------------------------


def test_records_are_there_for_the_next_process(tmp_path: Path) -> None:
    """Under any name, and wherever the working folder moves."""
    name = tmp_path / "a ? b # %20.db"
    SqliteTurnLedger(name).add(TURN)
    SqliteTurnLedger(str(name)).add(at(1))
    assert [record.run_id for record in open_ledger(name).records()] == ["r", "1"]


def test_more_records_than_a_page_come_back_in_order(file: Path) -> None:
    """Each once, although many have the same time; and a reader may stop anywhere."""
    ledger = SqliteTurnLedger(file)
    ledger.add(TURN)
    with closing(sqlite3.connect(file)) as connection, connection:
        copies = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2499) "
        insert = "INSERT INTO turns (surface, at, document) SELECT surface, at + i / 1500, document FROM turns, n"
        connection.execute(copies + insert)
    assert sum(1 for _ in ledger.records(RUN)) == 2_500
    assert ledger.fallbacks(RUN).on_kernel == 2_500
    assert next(ledger.records()) == TURN


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE turns SET surface = 'x'",
        "DELETE FROM turns",
        "INSERT OR REPLACE INTO turns (id, surface, at, document) VALUES (1, 'x', 0, '{}')",
        "INSERT INTO turns (id, surface, at, document) VALUES (1, 'x', 0, '{}') ON CONFLICT DO UPDATE SET at = 1",
    ],
)
def test_the_file_itself_refuses_to_change_a_turn(statement: str, file: Path) -> None:
    """Whatever program has opened it."""
    ledger = SqliteTurnLedger(file)
    ledger.add(TURN)
    with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    assert list(ledger.records()) == [TURN]


def test_only_a_ledger_that_is_there_is_opened(tmp_path: Path) -> None:
    """A misspelt name in a report makes no empty file that looks clean."""
    with pytest.raises(ConfigError, match="name the file"):
        open_ledger(tmp_path / "turn.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Text, another program's database, and a folder that does not exist."""
    text, foreign = tmp_path / "text.db", tmp_path / "foreign.db"
    text.write_text("these are the notes of somebody\n" * 40, encoding="utf-8")
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE accounts (name TEXT)")
    for file, complaint in ((text, "not a database"), (foreign, "something else")):
        before = file.read_bytes()
        with pytest.raises(ConfigError, match=complaint):
            SqliteTurnLedger(file)
        assert file.read_bytes() == before
    with pytest.raises(ConfigError, match="a folder that exists"):
        SqliteTurnLedger(tmp_path / "missing" / "turns.db")


def test_a_ledger_of_a_newer_version_is_refused(file: Path) -> None:
    """What it means is not known here."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match="version 2"):
        open_ledger(file)


def test_a_file_that_is_gone_is_told_of_by_each_use(file: Path) -> None:
    """No new one is begun in its place, which would look as if nothing had ever run."""
    ledger = SqliteTurnLedger(file)
    for part in file.parent.iterdir():
        part.unlink()
    with pytest.raises(LedgerError, match="unable to open") as caught:
        ledger.add(TURN)
    assert (caught.value.code, caught.value.path) == ("ledger", file)
    with pytest.raises(LedgerError):
        ledger.fallbacks(RUN)
    assert not file.exists()


def test_a_turn_that_cannot_be_recorded_is_over_all_the_same(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has what the ledger lost; a ledger that can be written has it, and the log nothing."""
    broken, whole = SqliteTurnLedger(file), MemoryTurnLedger()
    file.unlink()
    keep(TURN, whole)
    assert list(whole.records()) == [TURN]
    assert caplog.messages == []
    keep(TURN, broken)
    (message,) = caplog.messages
    assert message.startswith("a turn of invocation.run served by kernel is not recorded: the ledger")


def test_a_damaged_file_or_record_is_told_of(file: Path) -> None:
    """A report never counts around it."""
    ledger = SqliteTurnLedger(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO turns (surface, at, document) VALUES ('invocation.run', 0, '{}')")
    with pytest.raises(StateError, match="endstop/turn"):
        list(ledger.records())
    file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(LedgerError, match="not a database"):
        ledger.add(TURN)


def test_threads_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """One of them makes it, and none is told that it is busy."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(30):
            files = [tmp_path / f"{number}.db"] * 8
            assert [ledger.fallbacks(RUN).turns for ledger in pool.map(SqliteTurnLedger, files)] == [0] * 8


ADDING = """
import sys
from dataclasses import replace
from endstop.cutover.ledger import SqliteTurnLedger, TurnRecord

ledger = SqliteTurnLedger(sys.argv[1])
turn = TurnRecord(surface="invocation.run", served_by="kernel", route="kernel", switch="on", run_id="", duration_ms=1)
for number in range(int(sys.argv[3])):
    ledger.add(replace(turn, run_id=f"{sys.argv[2]}/{number}"))
    print(number, flush=True)
"""


def test_many_processes_may_add_at_once(tmp_path: Path) -> None:
    """Also at the moment at which each of them finds no file yet."""
    file = tmp_path / "turns.db"
    command = [sys.executable, "-W", "error", "-c", ADDING, str(file)]
    processes = [subprocess.Popen([*command, str(n), "15"], stdout=-1, stderr=-1, text=True) for n in range(4)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    added = Counter(record.run_id for record in open_ledger(file).records())
    assert added == Counter(f"{process}/{number}" for process in range(4) for number in range(15))


def test_a_process_that_is_killed_loses_at_most_the_record_that_it_was_writing(tmp_path: Path) -> None:
    """What it was told is kept is there, and the next process goes on in the same file."""
    file, added = tmp_path / "turns.db", -1
    for life in range(3):
        command = [sys.executable, "-c", ADDING, str(file), str(life), "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(10 + life):
                added = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            # What it had written before the signal came.
            added = max([added, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
            assert process.wait() == -signal.SIGKILL
        kept = [record.run_id for record in open_ledger(file).records() if record.run_id.startswith(f"{life}/")]
        assert kept == [f"{life}/{number}" for number in range(len(kept))]
        assert len(kept) in (added + 1, added + 2)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
