"""The extraction envelope: complete ones are taken out, split anywhere, and nothing else is touched or held back."""

from __future__ import annotations

import copy
import itertools
import json
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from endstop import Agent, ConfigError, ModelError, ModelTurn, RetryPolicy, TextDelta, Thinking
from endstop._envelope import EXTRACTION_TAG, EnvelopeFilter, checked_tag
from endstop._messages import JsonObject, JsonValue
from endstop.models.scripted import ScriptedModel, Step, call, turn
from tests.runs import events_of, look

TAG = "OPS"
OPEN, CLOSE = f"<{TAG}>", f"</{TAG}>"
PIECES = [
    *(OPEN, CLOSE, f'{OPEN}{{"ops":[{{"n":1}}]}}{CLOSE}', f'{OPEN} {{"ops": []}}\n{CLOSE}', '{"ops":[{"m":2}]}', "{}"),
    *("<", ">", "/", "OPS", "<OP", "</", "{", "}", '"', '{"ops":[{"t":"', '"}]}', "[", "]", " ", "\n", "a", "日"),
]
"""What texts are made of here: envelopes, parts of them, and what looks like one."""


def without_envelopes(text: str) -> tuple[str, list[JsonObject]]:
    """The rule, told by a regular expression: what is left of a text, and the operations that were in it."""
    ops: list[JsonObject] = []

    def taken(found: re.Match[str]) -> str:
        last = found[0].rfind(OPEN)
        for start in (0, last):
            body = found[0][start + len(OPEN) : -len(CLOSE)]
            content = parsed(body)
            if content is not None:
                ops.extend(content)
                return found[0][:start]
        return found[0]

    return re.sub(rf"{OPEN}\s*\{{.*?{CLOSE}", taken, text, flags=re.DOTALL | re.ASCII), ops


def parsed(body: str) -> list[JsonObject] | None:
    try:
        content: JsonValue = json.loads(body)
    except ValueError:
        return None
    ops = content.get("ops") if isinstance(content, dict) else None
    return ops if isinstance(ops, list) and all(isinstance(op, dict) for op in ops) else None


def filtered(*pieces: str, tag: str = TAG) -> tuple[str, EnvelopeFilter]:
    """All that is shown of a text in these pieces, and the filter."""
    envelope = EnvelopeFilter(tag)
    shown = "".join([envelope.feed(piece) for piece in pieces])
    return shown + envelope.end(), envelope


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def may_be_held(held: str) -> bool:
    """Whether it is an envelope that has begun and not ended, or less than a tag which may be its beginning."""
    begun = re.match(rf"{OPEN}[ \t\n\r]*(\{{|$)", held) and CLOSE not in held
    return bool(begun) or (len(held) < len(OPEN) and OPEN.startswith(held))


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.lists(st.integers(0, 200), max_size=12))
@example(f'{OPEN}{{"ops":[]{OPEN}{{"ops":[{{}}]}}{CLOSE}', [])
@example(f'{OPEN}{{"ops":[{{"t":"{OPEN}"}}]}}{CLOSE}', [3, 25])
@example(f"{OPEN}{OPEN} {OPEN}\n{{{CLOSE}", list(range(40)))
def test_any_text_in_any_pieces_loses_its_complete_envelopes_and_nothing_else(text: str, cuts: list[int]) -> None:
    """At every point no more is shown than what the whole text will show, and no more is held back than must be."""
    expected, ops = without_envelopes(text)
    envelope = EnvelopeFilter(TAG)
    fed = shown = ""
    for piece in split(text, cuts):
        fed += piece
        shown += envelope.feed(piece)
        assert expected.startswith(shown), "a part of an envelope has leaked"
        held = copy.deepcopy(envelope).end()
        assert shown + held == without_envelopes(fed)[0], "text was lost, or an envelope that is complete is still held"
        assert may_be_held(held), f"held back for nothing: {held!r}"
    assert shown + envelope.end() == expected
    assert (envelope.ops, envelope.seen) == (ops, expected != text)


@given(st.text(), st.lists(st.integers(0, 200), max_size=8))
def test_a_text_without_envelopes_is_shown_as_it_is(text: str, cuts: list[int]) -> None:
    """Every character, in order."""
    shown, envelope = filtered(*split(text, cuts))
    assert (shown, envelope.seen) == (text, False)


def test_every_split_of_an_envelope_in_two_is_the_same() -> None:
    """No place in it is special."""
    text = f'Hello {OPEN}{{"ops": [{{"op": "remember", "text": "tea"}}]}}{CLOSE}world'
    for cut in range(len(text) + 1):
        shown, envelope = filtered(text[:cut], text[cut:])
        assert (shown, envelope.ops) == ("Hello world", [{"op": "remember", "text": "tea"}])


@pytest.mark.parametrize(
    "text",
    [
        f'{OPEN}{{"ops": [',
        f'{OPEN}{{"ops": []}}',
        f'{OPEN}{{"ops": []}}</OPS',
        f'{OPEN}{{"ops": [1]}}{CLOSE}',
        f'{OPEN}{{"ops": {{}}}}{CLOSE}',
        f'{OPEN}{{"operations": []}}{CLOSE}',
        f'{OPEN}[{{"ops": []}}]{CLOSE}',
        f'{OPEN}{{"ops": [{{"n": NaN}}]}}{CLOSE}',
        f'{OPEN}{{"ops": [{{"n": {"[" * 200}{"]" * 200}}}]}}{CLOSE}',
        f'{OPEN}{{"ops": [{{"n": {"[" * 100_000}',
        f"{OPEN}{CLOSE}",
        f"{OPEN} and then {CLOSE}",
        f'{CLOSE}{{"ops": []}}{OPEN}',
        '<ops>{"ops": []}</ops>',
        f'< OPS>{{"ops": []}}{CLOSE}',
        f'<OPS >{{"ops": []}}{CLOSE}',
    ],
)
def test_what_is_no_complete_envelope_stays_text(text: str) -> None:
    """Not closed, no JSON, no object with operations, or nested deeper than a state can hold: nothing is lost."""
    shown, envelope = filtered(text)
    assert (shown, envelope.ops, envelope.seen) == (text, [], False)


def test_several_envelopes_are_one_list_of_operations() -> None:
    """In the order written, also where they stand side by side."""
    texts = [f'{OPEN}{{"ops": [{{"n": {n}}}]}}{CLOSE}' for n in range(4)]
    shown, envelope = filtered(texts[0] + "a" + texts[1] + texts[2], "b", texts[3])
    assert (shown, envelope.ops) == ("ab", [{"n": n} for n in range(4)])


def test_naming_the_tag_spoils_no_envelope() -> None:
    """A model that explains what it does, or that begins anew, still has its envelope taken out."""
    whole = f'{OPEN}{{"ops": [{{"t": "{OPEN}"}}]}}{CLOSE}'
    assert filtered(f"I use {OPEN} now: {whole}!")[0] == f"I use {OPEN} now: !"
    assert filtered(f'{OPEN}{{"ops": [ no: {OPEN}{{"ops": []}}{CLOSE}!')[0] == f'{OPEN}{{"ops": [ no: !'
    assert filtered(f'{OPEN}{{"ops": ["{CLOSE} {whole}!')[0] == f'{OPEN}{{"ops": ["{CLOSE} !'


def test_text_after_a_tag_that_opens_nothing_is_not_held_back() -> None:
    """Who reads along is not kept waiting for a closing tag that nobody will write."""
    envelope = EnvelopeFilter(TAG)
    assert envelope.feed(f"the tag {OPEN} ") == "the tag "
    assert envelope.feed("opens ") == f"{OPEN} opens "
    assert envelope.feed("it") == "it"


def test_half_a_surrogate_pair_in_an_operation_is_replaced() -> None:
    """As everywhere: a state that holds it must be one that can be written."""
    assert filtered(f'{OPEN}{{"ops": [{{"t": "\\ud83d"}}]}}{CLOSE}')[1].ops == [{"t": "?"}]


@pytest.mark.parametrize("tag", ["X", "a", "memory_extract2", "_"])
def test_the_tag_is_configurable(tag: str) -> None:
    """Another tag is text then."""
    other = f'{OPEN}{{"ops": []}}{CLOSE}'
    assert checked_tag(tag) == tag
    assert filtered(f'{other}<{tag}>{{"ops": []}}</{tag}>', tag=tag)[0] == other


@pytest.mark.parametrize("tag", ["", " ", "a b", "a>", "1a", "a\n", "é-", "<a"])
def test_a_tag_that_is_no_name_is_refused(tag: str) -> None:
    """The error names the field, the value and the remedy."""
    with pytest.raises(ConfigError, match=r"extraction_tag=.* letters, digits and underscores"):
        Agent(ScriptedModel([]), extraction_tag=tag)


MEGABYTE = 1_000_000
LONG = {
    "one envelope": f'{OPEN}{{"ops":[{{"t":"{"x" * MEGABYTE}"}}]}}{CLOSE}',
    "one that is never closed": f'{OPEN}{{"ops":[{{"t":"{"x" * MEGABYTE}',
    "white space after the tag": f"{OPEN}{' ' * MEGABYTE}{{",
    "many tags": OPEN * (MEGABYTE // 5),
    "many that begin": (OPEN + '{"') * (MEGABYTE // 7) + CLOSE,
    "many that are closed": f'{OPEN}{{"ops":[]}}{CLOSE}' * (MEGABYTE // 100),
    "many that are wrong": f"{OPEN}{{}}{CLOSE}" * (MEGABYTE // 100),
    "many beginnings": "<" * MEGABYTE,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())
def test_the_time_is_linear_in_the_text(text: str) -> None:
    """Ten times as many pieces of a megabyte do not take ten times as long: what is held is not read for each again."""

    def seconds(pieces: int) -> float:
        size = -(-len(text) // pieces)
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        started = time.process_time()
        filtered(*parts)
        return time.process_time() - started

    few = min(seconds(1_000) for _ in range(3))
    many = min(seconds(10_000) for _ in range(3))
    assert many < 5 * few + 0.1


# -- in a run --------------------------------------------------------------------------------------

WHOLE = '<MEMORY_EXTRACT>{"ops": [{"op": "remember", "text": "tea"}]}</MEMORY_EXTRACT>'
OPS = ({"op": "remember", "text": "tea"},)


@given(st.lists(st.integers(0, 200), max_size=10))
async def test_no_piece_of_an_envelope_is_streamed(cuts: list[int]) -> None:
    """However the model splits its text: joined, what the reader sees is the answer of the result."""
    pieces = split(f"You like {WHOLE}tea.{WHOLE}", cuts)
    async with Agent(ScriptedModel([Step(deltas=tuple(pieces))])).stream("go") as run:
        deltas = [event.text for event in await events_of(run) if isinstance(event, TextDelta)]
    assert "".join(deltas) == run.result.text == "You like tea."
    assert all(deltas), "an empty piece is no event"
    newest = run.result.messages[-1]
    assert isinstance(newest, ModelTurn)
    assert (newest.text, newest.extraction_ops, newest.extraction_seen) == ("You like tea.", OPS * 2, True)


async def test_an_answer_that_is_not_streamed_is_shown_without_its_envelope() -> None:
    """A model that gives no pieces is shown at once, filtered as well."""
    async with Agent(ScriptedModel([f"You like tea.{WHOLE}"])).stream("go") as run:
        deltas = [event.text for event in await events_of(run) if isinstance(event, TextDelta)]
    assert deltas == ["You like tea."]
    assert run.result.text == run.result.output == "You like tea."


async def test_an_envelope_that_is_cut_off_is_shown_in_the_end() -> None:
    """It stays text, in the stream and in the result."""
    text = f"You like tea.{WHOLE[:-1]}"
    async with Agent(ScriptedModel([text], stream=True)).stream("go") as run:
        deltas = [event.text for event in await events_of(run) if isinstance(event, TextDelta)]
    assert "".join(deltas) == run.result.text == text
    newest = run.result.messages[-1]
    assert isinstance(newest, ModelTurn)
    assert (newest.extraction_ops, newest.extraction_seen) == ((), False)


async def test_the_provider_s_own_form_is_dropped_with_the_envelope() -> None:
    """Replaying it would send the envelope again; a turn without one keeps it."""
    native = {"content": "as the provider has it"}
    for text, kept in ((f"tea{WHOLE}", None), ("tea </b>", native)):
        result = await Agent(ScriptedModel([ModelTurn(text=text, native=native)])).run("go")
        newest = result.messages[-1]
        assert isinstance(newest, ModelTurn)
        assert newest.native == kept


async def test_the_next_request_does_not_show_the_model_its_envelope() -> None:
    """The history is stripped, so that the model is not taught to repeat it; the calls beside it are kept."""
    model = ScriptedModel([turn(f"Looking.{WHOLE}", calls=[call("look", {"n": 1})]), "done"])
    result = await Agent(model, tools=[look]).run("go")
    asked = model.requests[1].messages[1]
    assert isinstance(asked, ModelTurn)
    assert (asked.text, [each.name for each in asked.tool_calls]) == ("Looking.", ["look"])
    assert EXTRACTION_TAG not in "".join(m.text for m in result.messages if isinstance(m, ModelTurn))
    assert type(result).from_json(result.to_json()) == result


async def test_a_structured_answer_may_have_an_envelope_beside_it() -> None:
    """It is taken out before the answer is read."""
    model = ScriptedModel([f'{{"value": [1, 2]}}\n{WHOLE}'])
    result = await Agent(model, output_type=list[int]).run("go")
    assert result.output == [1, 2]


async def test_a_retry_begins_with_nothing_held() -> None:
    """What a broken answer had begun is void, like its text."""
    broken = Step(deltas=("half ", WHOLE[:20]), error=ModelError("gone", retryable=True))
    agent = Agent(ScriptedModel([broken, "whole"]), retry=RetryPolicy(initial_wait_seconds=0, jitter_seconds=0))
    async with agent.stream("go") as run:
        deltas = [event.text for event in await events_of(run) if isinstance(event, TextDelta)]
    assert deltas == ["half ", "whole"]


async def test_reasoning_is_left_as_it_is() -> None:
    """It is not text of the answer."""
    async with Agent(ScriptedModel([turn("tea", thinking=WHOLE)], stream=True)).stream("go") as run:
        thoughts = "".join(event.text for event in await events_of(run) if isinstance(event, Thinking))
    assert thoughts == WHOLE


async def test_without_a_tag_texts_are_left_alone() -> None:
    """`extraction_tag=None` switches envelopes off."""
    async with Agent(ScriptedModel([f"tea{WHOLE}"], stream=True), extraction_tag=None).stream("go") as run:
        deltas = [event.text for event in await events_of(run) if isinstance(event, TextDelta)]
    assert "".join(deltas) == run.result.text == f"tea{WHOLE}"
