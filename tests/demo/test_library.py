"""Searching, opening and quoting a folder of documents: the tools of the demo's agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._errors import ConfigError
from endstop._tools import toolbox
from endstop.demo.library import QUOTE_CHARACTERS, SECTION_CHARACTERS, Library, split_document

LIMITS = """\
# Limits

A run has limits. Each has a unit.

## Rounds and *calls*

The last model round is **held back** for the
final answer. Retries count too! Version 3.5 is old.

- A tool call counts when it starts.
- An `unknown` tool is not counted.

| limit | unit |
|---|---|
| `max_cost` | US dollars |

```python
# not a heading
```

## Endings

### Ladder

Rungs are ordered.

## Ladder

A ladder of wood.
"""

GARDEN = "Tomatoes need water every day.\n\n# Herbs\n\nBasil likes the sun. " + "It grows and grows. " * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "limits.md").write_text(LIMITS, encoding="utf-8")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "garden.md").write_text(GARDEN, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("rounds", encoding="utf-8")
    return tmp_path


@pytest.fixture
def library(folder: Path) -> Iterator[Library]:
    with Library.from_folder(folder) as library:
        yield library


@pytest.fixture(scope="module")
def shared() -> Iterator[Library]:
    """A library that the examples of a property share."""
    with Library(split_document("limits.md", LIMITS)) as library:
        yield library


def test_a_document_is_cut_at_its_headings_and_ids_are_links(library: Library) -> None:
    """The opening has the document's name, a repeated heading a number, and an empty heading no section."""
    assert library.section_ids == (
        "limits.md",
        "limits.md#rounds-and-calls",
        "limits.md#ladder",
        "limits.md#ladder-1",
        "more/garden.md",
        "more/garden.md#herbs",
    )
    assert len(library) == 6
    assert repr(library) == "<Library of 6 sections>"


def test_a_heading_titles_what_stands_under_it() -> None:
    """A section can be found by the heading of the chapter that it is in."""
    titles = [section.title for section in split_document("limits.md", LIMITS)]
    assert titles == ["Limits", "Limits / Rounds and *calls*", "Limits / Endings / Ladder", "Limits / Ladder"]


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_a_code_block_has_no_headings(fence: str) -> None:
    """A comment in code is not a heading, also where the block shows a shorter fence or is never closed."""
    text = f"# A\n\n{fence}sh\n# one\n```x\n# two\n{fence}\n\n# B\n\n{fence}\n# three"
    assert [section.section_id for section in split_document("a.md", text)] == ["a.md", "a.md#b"]


def test_a_heading_of_signs_alone_still_has_an_id() -> None:
    """Every section can be named."""
    sections = list(split_document("a.md", "# A\n\none\n\n# !!\n\ntwo"))
    assert [section.section_id for section in sections] == ["a.md", "a.md#section"]


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    """A mistyped folder is said at once, not found out by empty searches."""
    with pytest.raises(ConfigError, match=r"folder=.*Markdown documents"):
        Library.from_folder(tmp_path)


def test_pages_may_be_left_out_by_name(tmp_path: Path) -> None:
    """Wherever in the folder they are; with all of them left out there is nothing to search."""
    (tmp_path / "deep").mkdir()
    for page in ("kept.md", "other.md", "deep/other.md"):
        (tmp_path / page).write_text("# Title\n\nText.\n")
    with Library.from_folder(tmp_path, without={"other.md"}) as library:
        assert [name.partition("#")[0] for name in library.section_ids] == ["kept.md"]
    with pytest.raises(ConfigError, match="folder"):
        Library.from_folder(tmp_path, without={"kept.md", "other.md"})


def test_search_gives_ids_the_best_first(library: Library) -> None:
    """One line a hit: the id that open takes, and where the words stand."""
    lines = library.search("how are the rungs of a ladder ordered?").splitlines()
    assert lines[0] == "limits.md#ladder: Rungs are ordered."
    assert {line.partition(": ")[0] for line in lines} == {"limits.md#ladder", "limits.md#ladder-1"}


def test_search_gives_no_more_hits_than_it_is_made_for(folder: Path) -> None:
    """How much a model reads is for whoever makes the library to say, not for the model."""
    with Library.from_folder(folder, hits=1) as library:
        assert len(library.search("ladder").splitlines()) == 1
    with pytest.raises(ConfigError, match="hits=0"):
        Library.from_folder(folder, hits=0)


@pytest.mark.parametrize("query", ["", "  ", '"*()', "\x00", "\ud800", "!?", "𝄞"])
def test_a_query_without_words_says_so(library: Library, query: str) -> None:
    """Instead of an error the model gets a remedy."""
    assert library.search(query) == "The query has no words. Search for two or three words of the question."


@pytest.mark.parametrize(
    "query",
    ["ladder AND", "NEAR(ladder", '"ladder', "text:ladder", "ladder*", "-ladder", "ladder\x00", "ladder OR 1=1;--"],
)
def test_operators_have_no_meaning(library: Library, query: str) -> None:
    """What the full-text engine would take for syntax is text here."""
    assert "limits.md#ladder" in library.search(query)


def test_a_query_of_common_words_alone_is_searched_as_it_is(library: Library) -> None:
    """Common words are left out only where others are left."""
    assert "limits.md" in library.search("the")


def test_a_search_without_hits_says_what_was_searched(library: Library) -> None:
    """The model can tell a missing word from a broken tool."""
    assert library.search("zebra") == "No section has any of the words: zebra. Try other words."


@given(st.text() | st.text(alphabet='"*()^:-+ANDORNEAR \x00') | st.text(st.characters(categories=["Cs", "L"])))
def test_search_never_raises(shared: Library, query: str) -> None:
    """Whatever a model writes is answered."""
    assert shared.search(query)


@given(st.text(), st.text())
def test_open_and_quote_never_raise(shared: Library, section_id: str, phrase: str) -> None:
    """Whatever a model writes is answered, and an answer is short."""
    for answer in (shared.open(section_id), shared.quote(section_id, phrase), shared.quote("limits.md#ladder", phrase)):
        assert 0 < len(answer) < SECTION_CHARACTERS + QUOTE_CHARACTERS


@given(st.text(alphabet="#`~ \n-abC1!é"))
def test_every_section_can_be_opened(text: str) -> None:
    """Ids are unique, and no text is lost but blank lines and headings."""
    sections = list(split_document("a.md", text))
    with Library(sections) as library:
        assert len(library) == len(sections)
        assert all(library.open(section.section_id) == section.text for section in sections)


def test_open_gives_a_section(library: Library) -> None:
    """The text of a section ends where the next heading stands."""
    assert library.open("limits.md") == "A run has limits. Each has a unit."


@pytest.mark.parametrize(
    "spelling",
    [" `limits.md#ladder` ", "[limits.md#ladder]", "limits.md#Ladder", "LIMITS.md#ladder", "limits.md# Ladder"],
)
def test_an_id_is_understood_in_the_spellings_that_models_give_it(library: Library, spelling: str) -> None:
    """A model copies ids with quotes and brackets, or writes the heading for the anchor."""
    assert library.open(spelling) == "Rungs are ordered."


def test_a_long_section_is_cut_and_says_so(library: Library) -> None:
    """The model knows that there is more, and how to get at it."""
    text, _, marker = library.open("more/garden.md#herbs").rpartition("\n")
    assert text.startswith("Basil likes the sun. It grows")
    assert len(text) <= SECTION_CHARACTERS
    assert marker == f"[cut: {len(text)} of 2020 characters shown; quote also finds the rest]"


def test_a_long_word_is_cut_too() -> None:
    """There is no blank to cut at."""
    with Library(split_document("a.md", "x" * 5000)) as library:
        assert library.open("a.md").startswith("x" * SECTION_CHARACTERS + "\n[cut: 1200 of 5000")


def test_an_unknown_id_is_answered_with_near_ones(library: Library) -> None:
    """The next call can be right."""
    assert library.open("limits.md#lader") == (
        "There is no section 'limits.md#lader'. Near: limits.md#ladder, limits.md#ladder-1, limits.md."
    )
    assert library.quote("zzz", "x") == "There is no section 'zzz'. Search for its words to get ids."


@pytest.mark.parametrize(
    ("phrase", "quoted"),
    [
        ("HELD back for the final", "The last model round is **held back** for the final answer."),
        ("counts when", "- A tool call counts when it starts."),
        ("an unknown tool", "- An `unknown` tool is not counted."),
        ("max_cost", "| `max_cost` | US dollars |"),
        ("answer. retries", "The last model round is **held back** for the final answer. Retries count too!"),
        ("3.5", "Version 3.5 is old."),
        ('"Version 3.5 is old..."', "Version 3.5 is old."),
        ("...version 3.5 is o", "Version 3.5 is old."),
        (
            "count",
            "Retries count too! ... - A tool call counts when it starts. ... - An `unknown` tool is not counted.",
        ),
    ],
)
def test_quote_gives_whole_sentences_word_for_word(library: Library, phrase: str, quoted: str) -> None:
    """Case, line breaks and marks in the phrase do not matter; the quotation is the document's own, on one line."""
    assert library.quote("limits.md#rounds-and-calls", phrase) == f'"{quoted}" (limits.md#rounds-and-calls)'


def test_a_sentence_is_quoted_once(library: Library) -> None:
    """Also where the phrase stands in it more than once."""
    assert library.quote("limits.md#ladder-1", "o") == '"A ladder of wood." (limits.md#ladder-1)'


def test_a_long_quotation_is_cut(library: Library) -> None:
    """A phrase that stands everywhere does not bring the whole section."""
    answer = library.quote("more/garden.md#herbs", "it grows")
    assert answer.endswith('..." (more/garden.md#herbs)')
    assert len(answer) < QUOTE_CHARACTERS + 50


def test_a_phrase_that_is_not_there_is_not_quoted(library: Library) -> None:
    """The model is told, and shown the sentence that it may have meant."""
    assert library.quote("limits.md#rounds-and-calls", "the round held for an answer") == (
        "Not in limits.md#rounds-and-calls: the round held for an answer. The nearest sentence there: "
        "The last model round is **held back** for the final answer."
    )


@pytest.mark.parametrize("phrase", ["", " \n", "`*`", "..."])
def test_an_empty_phrase_says_so(library: Library, phrase: str) -> None:
    """An empty phrase stands everywhere and tells nothing."""
    assert library.quote("limits.md", phrase) == "The phrase is empty. Give a few words that stand in the section."


def test_the_database_may_be_a_file_and_is_built_anew(folder: Path, tmp_path: Path) -> None:
    """What is searched is what stands in the folder now."""
    database = tmp_path / "library.sqlite"
    with Library.from_folder(folder, database=database) as library:
        assert "herbs" in library.search("basil")
    (folder / "more" / "garden.md").write_text("# Herbs\n\nSage.", encoding="utf-8")
    with Library.from_folder(folder, database=database) as library:
        assert library.search("basil").startswith("No section")


def test_it_can_be_used_from_several_threads(library: Library) -> None:
    """Tools that are not async run in threads, several at a time."""
    answers: list[str] = []

    def work() -> None:
        answers.extend(library.search("ladder") for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160
    assert len(set(answers)) == 1


def test_its_methods_are_tools(library: Library) -> None:
    """An agent takes them as they are: names, arguments and descriptions come from the methods."""
    tools = toolbox([library.search, library.open, library.quote]).values()
    parameters = {tool.name: tool.spec.parameters["properties"] for tool in tools}
    assert parameters.keys() == {"search", "open", "quote"}
    assert {name: set(properties) for name, properties in parameters.items()} == {
        "search": {"query"},
        "open": {"section_id"},
        "quote": {"section_id", "phrase"},
    }
    assert all(tool.spec.description for tool in tools)
