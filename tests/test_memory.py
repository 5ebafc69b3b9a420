"""A memory in one file: what is remembered, found again, forgotten, and shared by threads and processes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstop import Agent, ConfigError, RetrievedEvent, UserMessage
from endstop._messages import JsonObject
from endstop.memory import HEADING, INSTRUCTIONS, MAX_WORDS, Memory
from endstop.models.scripted import ScriptedModel, turn
from tests.runs import events_of


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    """An empty memory."""
    return Memory(tmp_path / "memory.db")


def remember(text: object, key: object = None) -> JsonObject:
    """An operation as a model writes it."""
    op = {"op": "remember", "text": text} | ({} if key is None else {"key": key})
    read: JsonObject = json.loads(json.dumps(op))
    return read


async def recalled(memory: Memory, prompt: str) -> list[str]:
    """The texts that a prompt recalls."""
    found = await memory.retrieve(prompt)
    heading, *lines = found.text.split("\n") if found.text else [HEADING]
    assert heading == HEADING
    assert len(lines) == found.counts["admitted"] <= found.counts["found"]
    return [line.removeprefix("- ") for line in lines]


# -- an agent that remembers -----------------------------------------------------------------------


async def test_a_second_run_remembers_what_the_first_was_told(tmp_path: Path) -> None:
    """Through the file alone: each run has a memory and a model of its own."""
    ops = '{"ops": [{"op": "remember", "text": "The user is called Ada."}]}'
    first, second = ScriptedModel([f"Hello!<MEMORY_EXTRACT>{ops}</MEMORY_EXTRACT>"]), ScriptedModel(["You are Ada."])
    for model, prompt in ((first, "I am Ada."), (second, "How is the user called?")):
        memory = Memory(tmp_path / "memory.db")
        agent = Agent(model, instructions=INSTRUCTIONS, retrieval=memory, post_model=memory)
        async with agent.stream(prompt) as run:
            events = await events_of(run)
    assert second.requests[0].messages == (
        UserMessage(content=f"{HEADING}\n- The user is called Ada.", source="kernel"),
        UserMessage(content="How is the user called?"),
    )
    assert [event.counts for event in events if isinstance(event, RetrievedEvent)] == [{"found": 1, "admitted": 1}]


async def test_the_instructions_show_an_envelope_that_works(memory: Memory) -> None:
    """A model that copies the example word for word has remembered something."""
    example = next(line for line in INSTRUCTIONS.split("\n") if line.startswith("<"))
    result = await Agent(ScriptedModel([turn(f"Noted.{example}")]), post_model=memory).run("go")
    assert result.text == "Noted."
    assert memory.texts() == ["The user drinks tea."]
    assert memory.ignored_ops == 0


# -- operations ------------------------------------------------------------------------------------


async def test_a_key_holds_its_newest_text(memory: Memory) -> None:
    """Texts without one stand side by side; the same text is kept once, with its key."""
    await memory.apply([remember("Ada drinks tea.", "drink"), remember("Ada runs."), remember("Ada reads.")])
    await memory.apply([remember("Ada drinks coffee.", "drink"), remember("Ada runs."), remember("  Ada\n reads.")])
    assert memory.texts() == ["Ada runs.", "Ada reads.", "Ada drinks coffee."]
    await memory.apply([remember("Ada drinks coffee."), remember("Ada drinks water.", "drink")])
    assert memory.texts() == ["Ada runs.", "Ada reads.", "Ada drinks water."]
    await memory.apply([remember("Ada runs.", "sport"), remember("Ada swims.", "sport")])
    assert memory.texts() == ["Ada reads.", "Ada drinks water.", "Ada swims."]
    assert memory.ignored_ops == 0


async def test_what_is_forgotten_is_not_found_again(memory: Memory) -> None:
    """By its key or by its text; other texts without a key stay."""
    await memory.apply([remember("Ada drinks tea.", "drink"), remember("Ada runs."), remember("Ada reads.")])
    await memory.apply([{"op": "forget", "key": "drink"}, {"op": "forget", "text": " Ada  runs. "}])
    await memory.apply([{"op": "forget", "key": "unknown"}, {"op": "forget", "text": "unknown"}])
    assert memory.texts() == await recalled(memory, "Ada") == ["Ada reads."]
    assert memory.ignored_ops == 0


@pytest.mark.parametrize(
    "op",
    [
        {},
        {"op": "dream", "text": "x"},
        {"op": ["remember"], "text": "x"},
        {"op": "remember"},
        {"op": "remember", "text": " \n"},
        {"op": "remember", "text": 5},
        {"op": "remember", "text": "x", "key": 5},
        {"op": "remember", "text": "x", "key": ""},
        {"op": "remember", "text": "x" * 2_000},
        {"op": "forget"},
        {"op": "forget", "text": ["x"]},
        {"op": "forget", "text": "kept", "key": {}},
    ],
)
async def test_an_operation_of_another_form_is_left_out_and_counted(op: JsonObject, memory: Memory) -> None:
    """The others of its list take effect."""
    await memory.apply([remember("kept"), op, remember("kept too")])
    assert memory.texts() == ["kept", "kept too"]
    assert memory.ignored_ops == 1


async def test_a_list_of_operations_takes_effect_whole_or_not_at_all(memory: Memory) -> None:
    """What fails amid it leaves the file as it was."""
    await memory.apply([remember("before")])
    with pytest.raises(AttributeError):
        await memory.apply([remember("after"), {"op": "forget", "text": "before"}, "no operation"])
    assert memory.texts() == ["before"]


# -- search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Ada drinks green tea.", "which TEA?"),
        ("Ada drinks green tea.", "what does she like to drink?"),
        ("Ada's mail is ada@example.com.", "example"),
        ("The file is foo_bar.", "bar"),
        ("naïve café", "CAFE"),
        ("我喜欢喝绿茶", "你喜欢什么?"),
        ("我喜欢喝绿茶", "茶"),
        ("ขอชาเขียว", "ชาเขียว"),
        ("हिन्दी भाषा", "हिन्दी"),
        ("Straße 5", "STRASSE"),
    ],
)
async def test_a_text_is_found_by_a_word_of_it(text: str, prompt: str, memory: Memory) -> None:
    """Whatever its case, its ending in English, its accents, and also where a script parts no words."""
    await memory.apply([remember(text), remember("something else")])
    assert await recalled(memory, prompt) == [text]


@pytest.mark.parametrize(
    "prompt",
    [
        *(
            "",
            " ",
            "?",
            '"',
            "'",
            "''",
            "*",
            "tea*",
            "NEAR(tea)",
            "words: tea",
            "-tea",
            "^tea",
            "(tea",
            "{words} : tea",
        ),
        *("AND", "OR NOT", "tea AND", "\0", "te\0a", "\ud83d", "😀", "😀 tea", "%", "_", ";--", "\\", "́"),
    ],
)
async def test_any_text_is_a_prompt(prompt: str, memory: Memory) -> None:
    """No character of it is a part of the query language."""
    await memory.apply([remember("Ada drinks tea.")])
    expected = ["Ada drinks tea."] if "tea" in prompt else []
    assert await recalled(memory, prompt) == expected


@settings(max_examples=25)
@given(prompt=st.text(), text=st.text(max_size=200))
def test_no_text_can_break_it(prompt: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither to remember nor to look for; what is remembered is found by itself."""
    memory = Memory(tmp_path_factory.mktemp("any") / "memory.db")

    async def main() -> None:
        await memory.apply([remember(text)])
        await memory.retrieve(prompt)
        kept = memory.texts()
        assert kept == ([" ".join(text.split())] if text.strip() else [])
        await memory.apply([{"op": "forget", "text": text}])
        assert memory.texts() == []

    anyio.run(main)


async def test_a_long_prompt_is_searched_by_its_first_words(memory: Memory) -> None:
    """A document in the prompt costs no more than so many words."""
    await memory.apply([remember("early bird"), remember("late bloomer")])
    words = [f"w{number}" for number in range(MAX_WORDS - 1)]
    assert await recalled(memory, " ".join(["early", *words, "late"] * 50)) == ["early bird"]


async def test_the_best_matches_are_admitted_up_to_a_number(tmp_path: Path) -> None:
    """All that match are counted; a match in more and rarer words is better."""
    memory = Memory(tmp_path / "memory.db", max_items=2)
    texts = ["tea", "a green tea", "green tea from Uji", "coffee", "a cup of tea", "water"]
    await memory.apply([remember(text) for text in texts])
    found = await memory.retrieve("green tea, Uji")
    assert found.counts == {"found": 4, "admitted": 2}
    assert found.text == f"{HEADING}\n- green tea from Uji\n- a green tea"


async def test_the_text_is_no_longer_than_it_may_be(tmp_path: Path) -> None:
    """What does not fit is left out for a shorter one; what could never fit is not remembered."""
    room = len(HEADING) + 20
    memory = Memory(tmp_path / "memory.db", max_chars=room)
    await memory.apply([remember("tea " * 4 + "t"), remember("tea " * 4 + "to"), remember("a tea")])
    assert (memory.texts(), memory.ignored_ops) == (["tea tea tea tea t", "a tea"], 1)
    found = await memory.retrieve("tea")
    assert len(found.text) <= room
    assert found.counts["admitted"] == 1
    narrow = Memory(tmp_path / "memory.db", max_chars=len(HEADING) + 8)
    assert await recalled(narrow, "tea") == ["a tea"]


async def test_it_may_admit_nothing(tmp_path: Path) -> None:
    """With no items it still says what it found."""
    memory = Memory(tmp_path / "memory.db", max_items=0)
    await memory.apply([remember("tea")])
    found = await memory.retrieve("tea")
    assert (found.text, found.counts) == ("", {"found": 1, "admitted": 0})


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory", "a b%.db", "日本.db"])
async def test_any_name_is_the_name_of_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the folder in which the memory was made, wherever the program goes afterwards."""
    monkeypatch.chdir(tmp_path)
    memory = Memory(name)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    await memory.apply([remember("tea")])
    assert Memory(tmp_path / name).texts() == ["tea"]


def test_a_file_that_cannot_be_a_memory_is_refused_at_once(tmp_path: Path) -> None:
    """A folder that is missing, a folder, another kind of file, another program's database."""
    (tmp_path / "text.db").write_text("no database, but text that is long enough to be looked at " * 20)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE memories (id)")
    other.close()
    for path in ("missing/memory.db", ".", "text.db", "other.db"):
        with pytest.raises(ConfigError, match=r"path=.*use a file of its own in a folder that exists") as refused:
            Memory(tmp_path / path)
        assert refused.value.field == "path"


@pytest.mark.parametrize(("field", "value"), [("max_items", -1), ("max_chars", True), ("max_items", None)])
def test_a_number_out_of_range_is_refused(field: str, value: object, tmp_path: Path) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=field):
        Memory(tmp_path / "memory.db", **{field: value})


@pytest.mark.both_backends
async def test_many_tasks_write_and_read_at_once(memory: Memory) -> None:
    """Each in a thread of its own; nothing is lost, and every text is there once."""

    async def use(number: int) -> None:
        await memory.apply([remember(f"fact {number % 20}"), remember(f"newest {number}", "newest"), {}])
        assert (await memory.retrieve("fact")).counts["admitted"] > 0

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(use, number)
    texts = memory.texts()
    assert sorted(text for text in texts if text.startswith("fact")) == sorted(f"fact {n}" for n in range(20))
    assert len(texts) == 21
    assert memory.ignored_ops == 40


PROCESS = """
import sys
import anyio
from endstop.memory import Memory

async def main() -> None:
    memory = Memory(sys.argv[1])
    for number in range(15):
        await memory.apply([{"op": "remember", "text": f"process {sys.argv[2]} fact {number}"}])
        assert (await memory.retrieve("fact")).counts["found"] > number

anyio.run(main)
"""


def test_many_processes_may_share_the_file(tmp_path: Path) -> None:
    """Also the moment at which each of them finds no file yet."""
    file = tmp_path / "memory.db"
    command = [sys.executable, "-c", PROCESS, str(file)]
    processes = [subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, text=True) for n in range(4)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    assert sorted(Memory(file).texts()) == sorted(f"process {p} fact {n}" for p in range(4) for n in range(15))
