"""Incremental detokenization equals decode(), never shows half a character, and its cost does not grow (bug A1)."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvalidField
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.token_decoder import REPLACEMENT, TokenDecoder
from octavo.text.tokenizer import Tokenizer

KITE_BALLOON = "kite🪁🎈Ærø東京"


def stream(tokenizer: Tokenizer, ids: list[int], **options: object) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)  # type: ignore[arg-type]
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.fixture(params=["byte_tokenizer", "stories_tokenizer", "metaspace_tokenizer"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def metaspace_tokenizer(stories_directory: object) -> Tokenizer:
    """The stories vocabulary under a Metaspace decoder, which drops the first token's spaces only."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(f"{stories_directory}/tokenizer.json")
    backend.decoder = tokenizers.decoders.Metaspace()
    return Tokenizer(backend)


def test_a1_characters_of_several_tokens_arrive_whole(tokenizer: Tokenizer) -> None:
    if tokenizer.decoder.first_token_drops:
        pytest.skip("this decoder has no byte fallback")
    ids = tokenizer.encode(KITE_BALLOON, add_special_tokens=False)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == KITE_BALLOON
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert "🪁" in deltas, "the character is sent as soon as its last byte is there"


def test_a1_a_stray_byte_repeated_becomes_replacement_characters(byte_tokenizer: Tokenizer) -> None:
    stray = byte_tokenizer.token_id("ð")
    assert stray is not None
    assert byte_tokenizer.token_bytes(stray) == b"\xf0"
    deltas = stream(byte_tokenizer, [stray] * 40)
    assert "".join(deltas) == REPLACEMENT * 40 == byte_tokenizer.decode([stray] * 40)
    assert deltas[1] == REPLACEMENT, "it does not wait for the end"


def test_a1_on_smollm2(smollm2: Tokenizer) -> None:
    ids = smollm2.encode(KITE_BALLOON)
    assert "".join(stream(smollm2, ids)) == KITE_BALLOON
    assert "".join(stream(smollm2, [126] * 40)) == REPLACEMENT * 40


def test_a1_the_time_per_token_does_not_grow(byte_tokenizer: Tokenizer) -> None:
    stray = byte_tokenizer.token_id("ð")
    detokenizer = IncrementalDetokenizer(byte_tokenizer)

    def seconds(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            detokenizer.push(stray)
        return time.perf_counter() - begun

    early = min(seconds(2000) for _ in range(5))
    seconds(50_000)
    late = min(seconds(2000) for _ in range(5))
    assert late < 5 * early


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), skip=st.booleans())
def test_joined_deltas_equal_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    assert "".join(stream(tokenizer, ids, skip_special_tokens=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_text_after_a_prompt_keeps_its_first_space(stories_tokenizer: Tokenizer) -> None:
    ids = stories_tokenizer.encode("Once upon a time", add_special_tokens=True)
    assert "".join(stream(stories_tokenizer, ids[3:], prompt=ids[:3])) == stories_tokenizer.decode(ids).removeprefix(
        stories_tokenizer.decode(ids[:3])
    )
    assert "".join(stream(stories_tokenizer, ids)) == "Once upon a time"


def test_a_character_begun_in_the_prompt_is_finished(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("🎈")
    assert stream(byte_tokenizer, ids[2:], prompt=ids[:2])[-2] == "🎈"


def test_special_tokens_are_left_out_or_shown(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("hi<|im_end|>")
    assert "".join(stream(byte_tokenizer, ids)) == "hi"
    assert "".join(stream(byte_tokenizer, ids, skip_special_tokens=False)) == "hi<|im_end|>"


def test_ids_beyond_the_vocabulary_add_nothing_and_negative_ones_are_refused(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.decode([byte_tokenizer.vocab_size + 5]) == ""
    assert byte_tokenizer.token_bytes(byte_tokenizer.vocab_size + 5) == b""
    with pytest.raises(InvalidField, match="token_ids"):
        IncrementalDetokenizer(byte_tokenizer).push(-1)


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_a_decoder_that_is_not_made_of_bytes_is_refused(decoder: dict | None) -> None:
    with pytest.raises(Exception, match="decoder"):
        TokenDecoder.from_json(decoder)
