"""How byte-level vocabularies cut text into words before merging, by the name a GGUF file gives it.

The names are llama.cpp's (`tokenizer.ggml.pre`), the patterns those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from octavo.core.errors import CheckpointError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)


@dataclass(frozen=True, slots=True)
class WordSplit:
    """`pattern` cuts words, None is GPT-2's; `single_digits` cuts every digit off first; `composes` brings text to
    Unicode NFC; `whole_words` takes a word that is a token as it is, without merging; `adds_bos` is what a file means
    that does not say."""

    pattern: str | None = None
    single_digits: bool = False
    composes: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def normalizer(self) -> Normalizer | None:
        return normalizers.NFC() if self.composes else None

    def pre_tokenizer(self) -> PreTokenizer:
        steps: list[PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


_GPT2 = WordSplit()
_SINGLE_DIGITS = WordSplit(single_digits=True)
_LLAMA3_SPLIT = WordSplit(_LLAMA3, whole_words=True, adds_bos=True)
_QWEN2_SPLIT = WordSplit(_QWEN2, composes=True)

WORD_SPLITS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": WordSplit(_TEKKEN, whole_words=True, adds_bos=True),
}


def find_word_split(name: str | None) -> WordSplit:
    """The split called `name`. Raises `CheckpointError` for one that is not known: any other would tokenize wrongly."""
    split = WORD_SPLITS.get(name or "")
    if split is None:
        given = f"is {name!r}, which is not known" if name else "is missing"
        raise CheckpointError(f"GGUF metadata tokenizer.ggml.pre: {given}; known are {', '.join(sorted(WORD_SPLITS))}")
    return split
