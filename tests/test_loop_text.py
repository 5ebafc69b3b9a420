"""What counts as the same result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._loop_text import reads_as_failure, steady

if TYPE_CHECKING:
    import random

SAME = [
    ("finished at 2024-05-01T10:00:01.123Z", "finished at 2025-11-30 9:59:59+02:00"),
    ("[10:00:01] started", "[23:59:59] started"),
    ("3 passed in 0.12s", "3 passed in 1.07s"),
    ("took 12 ms", "took 1250 ms"),
    ("elapsed: 90 seconds", "elapsed: 8 seconds"),
    ("real 0m1.250s", "real 2m0.900s"),
    ("Out[3]: 42", "Out[12]: 42"),
    ("Cell In[3], line 4", "Cell In[4], line 4"),
    ("In [9]: x", "In [10]: x"),
    ("attempt 3 was refused", "attempt 14 was refused"),
    ("b: no\na: no", "a: no\nb: no"),
    ("None\nYou have 3 steps left and 2 chances to answer left.\n", "None\nYou have 1 steps left to answer.\n"),
    ("x\nYou have 2 turns left.\nPlease answer now.\nYou must.", "x\nYou have 9 turns left."),
    ("You have 2 more attempts remaining\nresult: 4", "You only have 1 attempts remaining\nresult: 4"),
]

DIFFERENT = [
    ("page 1", "page 2"),
    ("45 % done", "46 % done"),
    ("order 10293", "order 10294"),
    ("on 2024-05-01", "on 2024-05-02"),
    ("id 3f2a-0001", "id 3f2a-0002"),
    ("3 items left", "2 items left"),
    ("3 steps remaining", "2 steps remaining"),
    ("You have 3 steps left\nresult: 4", "You have 3 steps left\nresult: 5"),
    ("3 tests failed", "2 tests failed"),
    ("In [3]: x", "In [3]: y"),
    ("", " "),
    ("x" * 9000 + "1", "x" * 9000 + "2"),
    ("x" * 4000 + "1" + "x" * 4000, "x" * 4000 + "2" + "x" * 4000),
    ("a\nb", "a\nb\nb"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_changes_by_itself_does_not_count(one: str, other: str) -> None:
    """Times, durations, prompt and attempt numbers, order of lines, notices of what is left."""
    assert steady(one) == steady(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_everything_else_counts_to_the_last_byte(one: str, other: str) -> None:
    """Numbers, ids, dates, amounts and progress are news, wherever they stand."""
    assert steady(one) != steady(other)


def test_times_are_masked_at_both_ends_of_a_long_result() -> None:
    """The first and last 1,000 bytes; between, all counts."""
    logs = [f"{clock} begin\n{'x' * 3000}\nend {clock}" for clock in ("10:00:01", "11:12:13")]
    assert steady(logs[0]) == steady(logs[1])
    middles = [f"{'x' * 3000} {clock} {'x' * 3000}" for clock in ("10:00:01", "11:12:13")]
    assert steady(middles[0]) != steady(middles[1])


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=200))
def test_any_text_has_a_steady_form(text: str) -> None:
    """A tool may return anything, lone surrogates included."""
    assert isinstance(steady(text), bytes)


@given(st.lists(st.text(alphabet="ab01:. ms", max_size=12)), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_count(lines: list[str], chance: random.Random) -> None:
    """Whatever stands in them."""
    turned = chance.sample(lines, len(lines))
    assert steady("\n".join(turned)) == steady("\n".join(lines))


@pytest.mark.parametrize(
    "result",
    [
        "Error: user not found",
        "Traceback (most recent call last):",
        "mv: cannot stat 'x': No such file or directory",
        "Command timed out",
        "Unknown tool: reflect",
        "3 passed, 10 failed",
    ],
)
def test_common_error_texts_read_as_failures(result: str) -> None:
    """In any case of letters."""
    assert reads_as_failure(result)


@pytest.mark.parametrize(
    "result",
    ["", "3 rows", "ok", "fine" * 100 + "error", "0 errors, 2 notes", "Done without errors.", "3 passed, 0 failed"],
)
def test_other_texts_do_not(result: str) -> None:
    """Only the first 300 characters are read, and a check that found nothing is a success."""
    assert not reads_as_failure(result)
