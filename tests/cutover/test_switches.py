"""Switches: what they may be set to and where, which threads a canary takes, and files that change under live turns."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop import ConfigError
from endstop.cutover.switches import (
    SURFACES,
    Setting,
    Surface,
    Switches,
    default_switches,
    position,
    use_switches,
)

RUN: Surface = "invocation.run"
STREAM: Surface = "invocation.stream"
RUN_VARIABLE = "ENDSTOP_CUTOVER_INVOCATION_RUN"

THREADS = st.text()
SHARES = st.floats(0, 1)


def switches(values: dict[str, str | float] | None = None, **options: object) -> Switches:
    """Switches that see nothing of the environment of the tests."""
    return Switches(values, environ={}, **options)  # type: ignore[arg-type]  # the options of one call, by name


def replaced(file: Path, text: str) -> None:
    """Put another text into a file in one step."""
    new = file.with_name("new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


# -- values ----------------------------------------------------------------------------------------


def test_a_surface_that_nobody_names_is_off() -> None:
    """So an agent behaves as it did until somebody says otherwise."""
    found = switches()
    assert [found.setting(surface) for surface in SURFACES] == [Setting(), Setting()]
    assert [found.decide(surface, "t") for surface in SURFACES] == ["legacy", "legacy"]
    assert found.problem is None


@pytest.mark.parametrize(
    ("value", "written", "route"),
    [
        ("off", "off", "legacy"),
        ("shadow", "shadow", "shadow"),
        ("on", "on", "kernel"),
        ("canary=0", "canary=0.0", "legacy"),
        ("canary=1", "canary=1.0", "kernel"),
        (0.0, "canary=0.0", "legacy"),
        (1, "canary=1.0", "kernel"),
    ],
)
def test_each_value_sends_turns_its_way(value: str | float, written: str, route: str) -> None:
    """Of the surface that it is given for, and of no other."""
    found = switches({RUN: value})
    assert str(found.setting(RUN)) == written
    assert found.decide(RUN, "t") == found.decide(RUN, None) == route
    assert found.decide(STREAM, "t") == "legacy"


@pytest.mark.parametrize(
    "value", ["", "ON", "true", "0.05", "canary", "canary=", "canary=x", "canary=nan", "canary=1.1", -0.1, 2, 10**400]
)
def test_a_value_that_is_none_is_refused_by_name(value: str | float) -> None:
    """The error says where it stands, what it is and what would do."""
    with pytest.raises(ConfigError, match="use 'off', 'shadow', 'on', or a share") as caught:
        switches({STREAM: value})
    assert caught.value.field == "values['invocation.stream']"
    assert caught.value.value == value


def test_true_is_no_share() -> None:
    """It would send everything to the kernel, whatever was meant by it."""
    with pytest.raises(ConfigError, match="True"):
        switches({RUN: True})


def test_a_surface_without_switch_is_refused() -> None:
    """When it is set and when it is asked for: a misspelt one would be off for ever."""
    with pytest.raises(ConfigError, match=r"'invocation\.runs'.*invocation\.run, invocation\.stream"):
        switches({"invocation.runs": "on"})
    wrong: Surface = "invocation.runs"  # type: ignore[assignment]  # what an untyped caller may ask for
    with pytest.raises(ConfigError, match=r"use one of invocation\.run, invocation\.stream"):
        switches().setting(wrong)


# -- sources ---------------------------------------------------------------------------------------


def test_code_is_stronger_than_the_environment_and_that_than_a_file(tmp_path: Path) -> None:
    """For each surface by itself."""
    file = tmp_path / "cutover.json"
    file.write_text(json.dumps({RUN: "canary=0.5", STREAM: 0.25}), encoding="utf-8")
    environ = {RUN_VARIABLE: " shadow "}
    assert Switches(file=file, environ={}).setting(RUN) == Setting(mode="canary", share=0.5, source="file")
    assert Switches(file=file, environ=environ).setting(RUN) == Setting(mode="shadow", source="environment")
    strongest = Switches({RUN: "on"}, file=file, environ=environ)
    assert strongest.setting(RUN) == Setting(mode="on", share=1.0, source="code")
    assert strongest.setting(STREAM) == Setting(mode="canary", share=0.25, source="file")


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable says nothing; a wrong one is named."""
    monkeypatch.setenv(RUN_VARIABLE, "canary=0.05")
    monkeypatch.setenv("ENDSTOP_CUTOVER_INVOCATION_STREAM", " ")
    assert str(Switches().setting(RUN)) == "canary=0.05"
    assert Switches().setting(STREAM) == Setting()
    monkeypatch.setenv(RUN_VARIABLE, "yes")
    with pytest.raises(ConfigError, match=f"{RUN_VARIABLE}='yes'"):
        Switches()


@pytest.fixture
def unnamed() -> Iterator[None]:
    """A process that has not named its switches."""
    before = use_switches(None)
    yield
    use_switches(before)


@pytest.mark.usefixtures("unnamed")
def test_a_process_has_the_switches_of_its_environment_until_it_names_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read when they are first asked for."""
    monkeypatch.setenv(RUN_VARIABLE, "shadow")
    of_environment = default_switches()
    assert of_environment.decide(RUN, None) == "shadow"
    assert default_switches() is of_environment
    mine = switches({RUN: "on"})
    assert use_switches(mine) is of_environment
    assert default_switches() is mine
    assert use_switches(None) is mine


# -- the canary ------------------------------------------------------------------------------------


@given(THREADS, SHARES, SHARES)
def test_a_share_that_grows_only_adds_threads(thread: str, one: float, other: float) -> None:
    """No conversation goes back because more go ahead."""
    small, large = sorted((one, other))
    in_small = switches({RUN: small}).decide(RUN, thread) == "kernel"
    in_large = switches({RUN: large}).decide(RUN, thread) == "kernel"
    assert in_large or not in_small


@given(THREADS, SHARES)
def test_a_thread_goes_the_same_way_on_each_surface(thread: str, share: float) -> None:
    """And each time it is asked."""
    found = switches({RUN: share, STREAM: share})
    assert len({found.decide(surface, thread) for surface in (RUN, STREAM, RUN)}) == 1


@given(THREADS)
def test_a_share_of_all_takes_all_and_of_none_none(thread: str) -> None:
    """A position is below 1, and never below 0."""
    assert 0 <= position(thread) < 1


def test_a_share_takes_about_so_many_threads() -> None:
    """Of ids that differ little."""
    taken = sum(switches({RUN: 0.05}).decide(RUN, f"thread-{number}") == "kernel" for number in range(4_000))
    assert 150 <= taken <= 250


@pytest.mark.parametrize(
    ("thread", "expected"),
    [
        ("", 0.9780518860122777),
        ("customer-1", 0.373090859598343),
        ("会話", 0.19114533333492922),
        ("\udcff", 0.0950448098756177),
    ],
)
def test_a_thread_stands_at_the_same_place_everywhere(thread: str, expected: float) -> None:
    """In every process, on every Python: an upgrade moves no conversation."""
    assert position(thread) == expected


def test_a_turn_without_a_thread_is_decided_by_a_draw() -> None:
    """And one with a thread draws nothing."""
    draws = iter([0.049, 0.05, 0.9, 0.0])
    found = switches({RUN: 0.05}, random=lambda: next(draws))
    assert [found.decide(RUN, None) for _ in range(3)] == ["kernel", "legacy", "legacy"]
    found.decide(RUN, "thread")
    assert next(draws) == 0.0


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cutover.json", '{"invocation.run": "canary=0.05"}'),
        ("cutover.toml", '"invocation.run" = "canary=0.05"'),
        ("cutover.toml", 'invocation.run = "canary=0.05"'),
        ("cutover.toml", "[invocation]\nrun = 0.05"),
    ],
)
def test_a_file_is_json_or_toml(name: str, text: str, tmp_path: Path) -> None:
    """In TOML the key may be without quotes too, as people write it."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert str(switches(file=tmp_path / name).setting(RUN)) == "canary=0.05"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("cutover.json", None, "No such file"),
        ("cutover.json", "", "use a .json or .toml file"),
        ("cutover.json", "[" * 100_000, "use a .json or .toml file"),
        ("cutover.json", "[]", "write an object"),
        ("cutover.json", '{"invocation.runs": "on"}', "name a surface"),
        ("cutover.json", '{"invocation.run": true}', r"cutover\.json\['invocation\.run'\]=True"),
        ("cutover.toml", "x", "use a .json or .toml file"),
        ("cutover.yaml", "invocation.run: on", "its name ends in '.yaml'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_the_start(
    name: str, text: str | None, complaint: str, tmp_path: Path
) -> None:
    """Before a turn is served, when somebody is there to read it."""
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=complaint):
        switches(file=tmp_path / name)


@pytest.mark.parametrize("broken", ["", '{"invocation.run": "onn"}', None], ids=["half", "wrong value", "deleted"])
def test_a_file_that_breaks_leaves_the_last_good_settings(
    broken: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told of once, for as long as it is broken, and good settings end it."""
    file = tmp_path / "cutover.json"
    file.write_text('{"invocation.run": "on"}', encoding="utf-8")
    found = switches(file=file)
    with caplog.at_level(logging.WARNING):
        if broken is None:
            file.unlink()
        else:
            replaced(file, broken)
        assert [found.decide(RUN, "t") for _ in range(5)] == ["kernel"] * 5
    assert found.problem is not None
    assert "its last good settings stay" in found.problem
    assert [record.getMessage() for record in caplog.records] == [found.problem]
    replaced(file, '{"invocation.run": "shadow"}')
    assert found.decide(RUN, "t") == "shadow"
    assert found.problem is None


def test_a_file_that_could_not_be_read_is_read_when_it_can_be(tmp_path: Path) -> None:
    """Also where nothing but that has changed: a folder in its place stands in for a disk that fails."""
    file = tmp_path / "cutover.json"
    file.write_text('{"invocation.run": "on"}', encoding="utf-8")
    found = switches(file=file)
    file.rename(tmp_path / "kept")
    file.mkdir()
    assert found.decide(RUN, "t") == "kernel"
    assert found.problem is not None
    file.rmdir()
    (tmp_path / "kept").rename(file)
    assert found.decide(RUN, "t") == "kernel"
    assert found.problem is None


def test_a_change_of_the_same_size_in_the_same_moment_is_seen(tmp_path: Path) -> None:
    """The clock of a file system is coarse: two texts written at once may look like one."""
    file = tmp_path / "cutover.json"
    file.write_text('{"invocation.run": 0.0}', encoding="utf-8")
    before = file.stat()
    found = switches(file=file)
    assert found.decide(RUN, "t") == "legacy"
    file.write_text('{"invocation.run": 1.0}', encoding="utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert found.decide(RUN, "t") == "kernel"


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    """Its stamp decides, once that is old enough to be told from a later one."""
    file = tmp_path / "cutover.json"
    file.write_text('{"invocation.run": 0.0}', encoding="utf-8")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    found = switches(file=file)
    file.write_text('{"invocation.run": 1.0}', encoding="utf-8")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert found.decide(RUN, "t") == "legacy"
    os.utime(file, (1_000_000_001, 1_000_000_001))
    assert found.decide(RUN, "t") == "kernel"


def test_a_file_that_changes_flips_live_turns(tmp_path: Path) -> None:
    """In every thread, once each time: what was decided after a change goes the new way."""
    file = tmp_path / "cutover.json"
    file.write_text('{"invocation.run": "off"}', encoding="utf-8")
    found, workers = switches(file=file), 6
    at_work = threading.Barrier(workers + 1)

    def serve() -> list[str]:
        ways: list[str] = []
        for _ in range(3):
            at_work.wait(30)
            ways += {found.decide(RUN, str(number)) for number in range(50)}
            at_work.wait(30)
        return ways

    with ThreadPoolExecutor(workers) as pool:
        served = [pool.submit(serve) for _ in range(workers)]
        for value in ("on", "shadow", "off"):
            replaced(file, json.dumps({RUN: value}))
            at_work.wait(30)
            at_work.wait(30)
    assert [turns.result() for turns in served] == [["kernel", "shadow", "legacy"]] * workers


def test_turns_go_one_way_or_the_other_while_a_file_changes(tmp_path: Path) -> None:
    """Never a third, and no turn fails."""
    file = tmp_path / "cutover.json"
    file.write_text('{"invocation.run": "on"}', encoding="utf-8")
    found, is_over = switches(file=file), threading.Event()

    def serve() -> set[str]:
        ways = {found.decide(RUN, "t")}
        while not is_over.is_set():
            ways.add(found.decide(RUN, "t"))
        return ways

    with ThreadPoolExecutor(4) as pool:
        served = [pool.submit(serve) for _ in range(4)]
        for number in range(60):
            replaced(file, json.dumps({RUN: "on" if number % 2 else "shadow"}))
        is_over.set()
    assert set().union(*(turns.result() for turns in served)) <= {"kernel", "shadow"}
    assert found.problem is None
