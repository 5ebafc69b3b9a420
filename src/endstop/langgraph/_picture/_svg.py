"""The few pieces of SVG that the pictures are made of. Texts are escaped, cut and measured here."""

from __future__ import annotations

import re
from bisect import bisect
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias
from unicodedata import combining, east_asian_width
from xml.etree.ElementTree import Element, SubElement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from endstop.langgraph._picture._layout import Point

Anchor: TypeAlias = Literal["start", "middle", "end"]

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
INK = "#1f2933"
MUTED = "#52606d"
CORNER = 7.0
"""Radius of a line's rounded corners."""

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_EMS: dict[str, float] = {
    **dict.fromkeys(" ',-./:;I\\fijl|\N{MIDDLE DOT}", 0.36),
    **dict.fromkeys('!"()*[]`rt', 0.5),
    **dict.fromkeys("abcdeghknopqsuvxyz0123456789$?_{}", 0.64),
    **dict.fromkeys("%@MWmw", 1.0),
}
_OTHER_EM = 0.85
_FULL_WIDTH_EM = 1.05
_BOLD = 1.13
"""Widths of characters as shares of the font size, in DejaVu Sans or above: measured, the widest of the common ones."""


def add(parent: Element, tag: str, **attributes: str | float) -> Element:
    """A new element below `parent`. An underscore in a name stands for a hyphen; numbers get one decimal."""
    return SubElement(
        parent, tag, {name.rstrip("_").replace("_", "-"): _value(value) for name, value in attributes.items()}
    )


def say(parent: Element, tag: str, words: str) -> None:
    """A `title` or `desc`: what is shown on hovering, and read aloud."""
    SubElement(parent, tag).text = clean(words)


def write(
    parent: Element,
    at: Point,
    words: str,
    *,
    size: float = 11.5,
    anchor: Anchor = "start",
    bold: bool = False,
    fill: str = INK,
) -> None:
    """One line of text. `at` is its middle line at the end that `anchor` names."""
    x, y = at
    weight = {"font_weight": "bold"} if bold else {}
    text = add(parent, "text", x=x, y=y + 0.36 * size, font_size=size, text_anchor=anchor, fill=fill, **weight)
    text.text = clean(words)


def clean(words: str) -> str:
    """The words in one line, without the characters that XML cannot hold."""
    return " ".join(_NOT_IN_XML.sub("\ufffd", words).split())


def text_width(words: str, size: float, *, bold: bool = False) -> float:
    """Width of a text at this font size. It is less than this in the common sans-serif fonts."""
    ems = sum(_EMS.get(char) or _rare_em(char) for char in words)
    return size * ems * (_BOLD if bold else 1.0)


def _rare_em(char: str) -> float:
    if combining(char):
        return 0.0
    return _FULL_WIDTH_EM if east_asian_width(char) in "WF" else _OTHER_EM


def cut(words: str, size: float, width: float, *, bold: bool = False) -> str:
    """The words where they fit, else as much as does and an ellipsis."""
    words = clean(words)
    if text_width(words, size, bold=bold) <= width:
        return words
    room = width - text_width("…", size, bold=bold)
    reach = list(accumulate(text_width(char, size, bold=bold) for char in words))
    return f"{words[: bisect(reach, room)].rstrip()}…"


def wrapped(words: str, size: float, width: float) -> Iterator[str]:
    """The words in lines of at most this width; a word that is longer than a line is cut."""
    line = ""
    for word in clean(words).split():
        longer = f"{line} {word}".strip()
        if line and text_width(longer, size) > width:
            yield cut(line, size, width)
            longer = word
        line = longer
    if line:
        yield cut(line, size, width)


def curve(points: Sequence[Point]) -> str:
    """A path through the points that passes each of them upright."""
    path = [f"M{_point(points[0])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        straight = f"L{_point((x1, y1))}"
        bent = f"C{_point((x0, middle))} {_point((x1, middle))} {_point((x1, y1))}"
        path.append(straight if x0 == x1 else bent)
    return "".join(path)


def corners(points: Sequence[Point]) -> str:
    """A path along the points with rounded corners."""
    path = [f"M{_point(points[0])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        path.append(f"L{_point(_toward(here, before))}Q{_point(here)} {_point(_toward(here, after))}")
    return "".join([*path, f"L{_point(points[-1])}"])


def _toward(here: Point, there: Point) -> Point:
    """The point where the corner at `here` ends on the way to `there`."""
    dx, dy = there[0] - here[0], there[1] - here[1]
    length = abs(dx) + abs(dy)
    share = min(CORNER, length / 2) / length
    return here[0] + dx * share, here[1] + dy * share


def _point(point: Point) -> str:
    return f"{_value(point[0])},{_value(point[1])}"


def _value(value: str | float) -> str:
    return clean(value) if isinstance(value, str) else format(round(value, 1) + 0.0, ".10g")
