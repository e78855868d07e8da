"""Stop strings: bug A2, and the same outcome however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import InvalidField
from octavo.text.stop_strings import StopChecker


def run(pieces: list[str], stops: list[str], include_stop: bool = False) -> tuple[str, str | None, list[str]]:
    """(all text sent, the stop hit, the deltas)"""
    checker = StopChecker(stops, include_stop)
    sent = []
    for piece in pieces:
        text, hit = checker.push(piece)
        sent.append(text)
        if hit is not None:
            return "".join(sent), hit, sent
    sent.append(checker.flush())
    return "".join(sent), None, sent


@pytest.mark.parametrize("pieces", [[" seven", " eight", " nine", " ten"], [" seven eight nine ten"]])
def test_a2a_a_stop_string_that_begins_and_ends_inside_tokens(pieces: list[str]) -> None:
    assert run(pieces, ["ight nin"])[:2] == (" seven e", "ight nin")
    assert run(pieces, ["ight nin"], include_stop=True)[0] == " seven eight nin"


def test_a2b_text_that_only_looked_like_a_stop_is_sent_once() -> None:
    text, hit, deltas = run([" Kim", "!", " Bye"], ["\n", "Kim:"])
    assert (text, hit) == (" Kim! Bye", None)
    assert deltas == [" ", "Kim!", " Bye", ""]


def test_a2c_what_is_held_back_at_the_end_arrives() -> None:
    text, hit, deltas = run(["Is it", "?"], ["?\n"])
    assert (text, hit) == ("Is it?", None)
    assert deltas[-1] == "?"


def test_nothing_is_held_back_without_a_reason() -> None:
    checker = StopChecker(["END", "\n\n"])
    assert checker.push("hello\n") == ("hello", None)
    assert checker.push("worldE") == ("\nworld", None)
    assert checker.push("EN") == ("E", None)
    assert checker.push("x") == ("ENx", None)
    assert StopChecker([]).push("abc") == ("abc", None)


def test_the_stop_that_is_complete_first_wins_and_then_the_longer() -> None:
    assert run(["abcdef"], ["abcdef", "cd"])[:2] == ("ab", "cd")
    assert run(["xabc"], ["c", "bc", "abc"])[:2] == ("x", "abc")


def test_nothing_is_sent_after_a_hit() -> None:
    checker = StopChecker(["!"])
    assert checker.push("hi! you") == ("hi", "!")
    assert checker.push("more") == ("", "!")
    assert checker.flush() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_an_empty_stop_string_is_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidField, match="stop"):
        StopChecker(stops)


@given(
    text=st.text(alphabet="ab\n", max_size=40),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=6), max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=12),
    include_stop=st.booleans(),
)
def test_any_cut_of_the_text_gives_what_a_plain_search_gives(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, negative_length, hit = min(found) if found else (len(text), 0, None)
    expected = text[: end if include_stop or hit is None else end + negative_length]
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:stop] for start, stop in itertools.pairwise(places)]
    assert run(pieces, stops, include_stop)[:2] == (expected, hit)
