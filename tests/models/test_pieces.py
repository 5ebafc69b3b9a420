"""Text that is shown while it comes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._messages import clean_text
from endstop.models._pieces import CleanText, JsonText

TEXTS = st.text(st.characters() | st.sampled_from('😀\ud83d\ude00"\\\n\x00/u'))


def joined(text: CleanText | JsonText, whole: str, places: set[int]) -> str:
    """What is shown of a whole that comes in pieces; what was shown is what is kept."""
    ends = sorted({0, len(whole), *(place for place in places if place < len(whole))})
    shown = "".join(text.add(whole[start:end]) for start, end in pairwise(ends))
    assert shown == str(text)
    return shown


@given(value=TEXTS, ascii_only=st.booleans(), rest=TEXTS, data=st.data())
def test_a_json_string_is_the_same_in_any_pieces(value: str, ascii_only: bool, rest: str, data: st.DataObject) -> None:
    """Split at any character, inside an escape too, it is the text that a JSON parser reads; what follows is not."""
    written = json.dumps(value, ensure_ascii=ascii_only)
    places = data.draw(st.sets(st.integers(1, len(written))))
    half = bool(value) and "\ud800" <= value[-1] <= "\udbff"
    read = json.loads(written).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    assert joined(JsonText(), written[1:] + rest, places) == clean_text(read[:-1] if half else read)


@given(value=TEXTS, data=st.data())
def test_a_string_that_is_cut_is_its_beginning(value: str, data: st.DataObject) -> None:
    """As much is shown as is certain."""
    written = json.dumps(value)[1:]
    cut = data.draw(st.integers(0, len(written)))
    whole, part = JsonText(), JsonText()
    assert whole.add(written).startswith(part.add(written[:cut]))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"\u00e9\n\t\"\\\/\b\f\r", 'é\n\t"\\/\b\f\r'),
        (r"\ud83d\ude00", "😀"),
        (r"\ud83dx", "?x"),
        (r"\ude00", "?"),
        (r"C:\work\docs", "C:\\work\\docs"),
        (r"\(x\)", r"\(x\)"),
        (r"\users \u12 \u", r"\users \u12 "),
        ("line\nbreak", "line\nbreak"),
        ('end" of it', "end"),
        ("\\", ""),
        (r"\ud83d", ""),
    ],
)
def test_what_models_write_into_strings(written: str, text: str) -> None:
    """Escapes, known and unknown; raw line breaks; and ends in the middle: all at once, and one by one."""
    assert JsonText().add(written) == text
    assert joined(JsonText(), written, set(range(len(written)))) == text


def test_nothing_is_added_behind_the_end() -> None:
    """The closing quote ends the text for good."""
    text = JsonText()
    assert [text.add(piece) for piece in ('a"', '"b', "c")] == ["a", "", ""]


@given(value=TEXTS, data=st.data())
def test_a_character_in_two_halves_is_whole_again(value: str, data: st.DataObject) -> None:
    """Split between any two UTF-16 units, the text is the same, and nothing in it is broken."""
    units = value.encode("utf-16-le", "surrogatepass")
    places = sorted(data.draw(st.sets(st.integers(0, len(units) // 2))) | {0, len(units) // 2})
    text = CleanText()
    pieces = [units[2 * a : 2 * b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(places)]
    shown = "".join(text.add(piece) for piece in pieces)
    whole = units.decode("utf-16-le", "surrogatepass")
    half = bool(whole) and "\ud800" <= whole[-1] <= "\udbff"
    assert shown == str(text) == clean_text(whole[:-1] if half else whole)
