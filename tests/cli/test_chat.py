"""`octavo chat`: turns, history, commands; an answer can be stopped."""

import io
import itertools

import pytest

from octavo.cli import chat
from octavo.cli.chat import Conversation
from octavo.core.errors import InvalidField
from octavo.core.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer
from tests.checkpoints import make_tiny
from tests.scripted import scripted_engine
from tests.tokenizers import make_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_directory(make_byte_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def conversation(tokenizer, script=" seven eight", system=None, **options):
    engine = scripted_engine(tokenizer, script, **options)
    return Conversation(engine, SamplingParams(max_tokens=None), system)


def test_each_turn_sees_all_before_it(tokenizer):
    talk = conversation(tokenizer, lambda ids: tokenizer.decode(ids)[:3] + str(len(ids)), system="hello")
    said = ["".join(talk.answer(text)) for text in ("one", "two")]
    roles = [message["role"] for message in talk.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert [message["content"] for message in talk.messages if message["role"] == "assistant"] == said
    assert said[0] != said[1]
    assert talk._engine.stats.num_prefix_hit_tokens > 0
    talk.reset()
    assert [message["role"] for message in talk.messages] == ["system"]
    assert "".join(talk.answer("one")) == said[0]


def test_a_stopped_answer_frees_its_memory_and_stays_in_the_history(tokenizer):
    talk = conversation(tokenizer, [10] * 400)
    pieces = []
    for piece in talk.answer("go"):
        pieces.append(piece)
        if len(pieces) == 3:
            talk.stop()
    assert 3 <= len(pieces) <= 5
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
    assert not talk._engine.has_work
    assert talk._engine.stats.num_used_blocks == 0
    assert list(itertools.islice(talk.answer("again"), 2))


def test_a_refused_turn_leaves_the_history_as_it_was(tokenizer):
    talk = conversation(tokenizer, max_model_len=64)
    "".join(talk.answer("hi"))
    before = list(talk.messages)
    with pytest.raises(InvalidField, match="64"):
        list(talk.answer("x" * 100))
    assert talk.messages == before


def test_turns_may_be_piped_in(tmp_path, monkeypatch, capsys):
    """A real model, no terminal: an answer a line, commands obeyed, nothing after /exit."""
    model = make_tiny("llama", tmp_path / "tiny", vocab_size=320)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n/reset\nhello\n/what\n/exit\nhello\n"))
    chat.run(str(model), temperature=0.0, max_tokens=5, memory="2GiB")
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()[:1], captured.out.splitlines()[-1:]
    assert captured.out.count("\n") >= 2
    assert first == second or captured.out[: len(captured.out) // 2] * 2 == captured.out
    assert "/what is no command" in captured.err
