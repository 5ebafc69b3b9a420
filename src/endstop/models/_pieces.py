"""Text that comes in pieces, and can be shown as it comes."""

from __future__ import annotations

import re

from endstop._messages import clean_text

_TOKEN = re.compile(
    r"""
    [^"\\]+
    | \\u(?P<unit>[0-9a-fA-F]{4})
    | \\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])  # no code: two characters like any others
    | \\(?P<escape>[^u])
    """,
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class CleanText:
    """Text without lone surrogates. A character that was split between two pieces comes with the second."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add(self, piece: str) -> str:
        """The piece as it can be shown: all that was returned, joined, is the text."""
        if piece and (self._half or not piece.isascii()):
            piece = self._half + piece
            self._half = piece[-1] if "\ud800" <= piece[-1] <= "\udbff" else ""
            whole = piece.removesuffix(self._half)
            piece = clean_text(whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass"))
        self._pieces.append(piece)
        return piece


class JsonText:
    """The inside of a JSON string, from behind its opening quote, decoded while it is written.

    What follows the closing quote is not looked at. Escapes that JSON does not know, which models like to
    write in formulas and paths, stand for themselves.
    """

    def __init__(self) -> None:
        self._text = CleanText()
        self._held = ""
        self._closed = False

    def __str__(self) -> str:
        return str(self._text)

    def add(self, piece: str) -> str:
        """The piece as it can be shown: all that was returned, joined, is the text."""
        if self._closed:
            return ""
        piece, at, decoded = self._held + piece, 0, list[str]()
        while match := _TOKEN.match(piece, at):
            decoded.append(_decoded(match))
            at = match.end()
        self._held = piece[at:]
        self._closed = self._held.startswith('"')
        return self._text.add("".join(decoded))


def _decoded(token: re.Match[str]) -> str:
    if (unit := token["unit"]) is not None:
        return chr(int(unit, 16))
    if (escape := token["escape"]) is not None:
        return _ESCAPES.get(escape, "\\" + escape)
    return token[0]
