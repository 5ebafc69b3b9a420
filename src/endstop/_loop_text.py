"""What counts as the same result of a tool, and what reads as a failure."""

from __future__ import annotations

import re

_MASKED_BYTES = 1000
_NOTICE_BYTES = 300
_FAILURE_CHARACTERS = 300

# A copy in which digits are 0, the first letters of units s, t is n, and spaces are gone: four plain substring tests on
# it tell whether a text may hold anything to mask, so that the expression, ten times slower, runs on few texts.
_SIGNS_TABLE = bytes.maketrans(b"123456789mhut", b"000000000sssn")
_SIGNS = (b"0s", b"0:00:00", b"n[0", b"pn0")
# Every repetition is bounded, so that the time is linear on any text. Every alternative begins with a digit, because
# the engine skips to the next one quickly. In order: 2024-01-31T10:15:02Z, 10:15:02.250, 0m1.250s, 1.25 seconds,
# In [3], Out[3], attempt 3.
_NOISE = re.compile(
    rb"[0-9]{1,20}+(?:"
    rb"-[0-9]{2}-[0-9]{2}[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
    rb"|:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
    rb"|m[0-9]{1,2}(?:\.[0-9]{1,9})?s\b"
    rb"|(?:[.,][0-9]{1,9})? ?(?:[mu]?s|secs?|seconds?|mins?|minutes?|hours?)\b"
    rb"|(?<=In \[[0-9])|(?<=In \[[0-9]{2})|(?<=In\[[0-9])|(?<=In\[[0-9]{2})"
    rb"|(?<=Out\[[0-9])|(?<=Out\[[0-9]{2})"
    rb"|(?<=ttempt [0-9])|(?<=ttempt [0-9]{2}))"
)
_NOTICE = re.compile(
    rb"[Yy]ou (?:only |still )?have (?:only )?[0-9]{1,9} (?:more )?"
    rb"(?:steps?|turns?|rounds?|chances?|attempts?|tries|calls?)\b[^\n]{0,40}?\b(?:left|remaining)\b"
)
_FAILURES = ("error", "exception", "traceback", "fail", "timed out", "timeout", "usage:", "invalid", "unexpected")
_REFUSALS = ("cannot", "can't", "could not", "unable to", "no such", "not found", "unknown", "denied", "may not")
_FAILURE_WORDS = _FAILURES + _REFUSALS
_NO_FAILURE = re.compile(r"\b(?:0|no|zero|without) (?:errors?|exceptions?|fail(?:ed|ures?)?)\b")


def steady(result: str) -> bytes:
    """The part of a result that stays equal while nothing happens.

    Left out are timestamps, clock times, durations, prompt and attempt numbers in the first and last 1,000 bytes, and a
    notice at the end of how many steps the agent has left. All else counts to the last byte: ids, dates, amounts and
    percentages are news. Only the order of lines doesn't count, because the two streams of a command mix by chance.
    """
    text = result.encode("utf-8", "surrogatepass")
    ending = text[-_NOTICE_BYTES:]
    if b"left" in ending or b"remaining" in ending:
        text = text[:-_NOTICE_BYTES] + _without_notice(ending)
    if len(text) <= 2 * _MASKED_BYTES:
        text = _masked(text)
    else:
        text = _masked(text[:_MASKED_BYTES]) + text[_MASKED_BYTES:-_MASKED_BYTES] + _masked(text[-_MASKED_BYTES:])
    return b"\n".join(sorted(text.split(b"\n"))) if b"\n" in text else text


def reads_as_failure(result: str) -> bool:
    """Whether the first 300 characters of a result speak of a failure.

    Rough on purpose: it decides how many equal results of different calls are too many, never whether they are equal.
    """
    head = result[:_FAILURE_CHARACTERS].lower()
    return any(word in head for word in _FAILURE_WORDS) and _NO_FAILURE.search(head) is None


def _masked(text: bytes) -> bytes:
    signs = text.translate(_SIGNS_TABLE, b" ")
    if b"0" in signs:
        for sign in _SIGNS:
            if sign in signs:
                return _NOISE.sub(b"#", text)
    return text


def _without_notice(ending: bytes) -> bytes:
    """Drop a line like `You have 3 steps left` and those after it that speak to the agent: no tool says them."""
    found = _NOTICE.search(ending)
    if found is None:
        return ending
    start = ending.rfind(b"\n", 0, found.start()) + 1
    rest = ending[found.end() :].split(b"\n")[1:]
    while rest and rest[0].startswith((b"You ", b"Please ")):
        rest = rest[1:]
    return ending[:start] + b"\n".join(rest)
