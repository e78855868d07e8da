"""A tokenizer as GGUF metadata; `gguf_tokenizer` is the inverse.

GGUF names a kind of tokenizer and gives its vocabulary; the rules are the engine's. So the rules of ours must be
found among the named ones, and what was found is tried: the tokenizer built back from the metadata has to cut
`PROBE_TEXTS` as the original does, or there is no metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import tokenizers

from octavo.core.errors import UnsupportedModel
from octavo.text.gguf_tokenizer import NAMED_IDS, TURN_ENDS, TokenType
from octavo.text.pre_tokenizer import WORD_SPLITS

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

_PREFIX = "tokenizer.ggml."
_SPACE = "▁"
#: Names that are written; llama.cpp means something else by `default`.
_WRITTEN_SPLITS = ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken")
#: Score of a token that text is matched to before anything is merged.
_USER_DEFINED_SCORE = -1000.0
PROBE_TEXTS = (
    "Hello world! I'm sure we'LL don't, THEY'RE fine; he'd've gone.",
    "1 12 123 1234 3.14159 2026-11-30 v2.0.1 0x1F",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tif x:\r\n        pass  \n",
    "naïve café e\u0301 — “quotes” … ½ × √2",
    "東京は晴れ。 中文字符，测试。 Привет мир! مرحبا भाषा 한국어",
    "🎈🪁 emoji👩‍👩‍👧 zero\u200bwidth",
    "camelCase HTTPServer XMLHttpRequest ALLCAPS mixedCASEword",
    "a/b\\c//d /// ... !!! ??? --- === ***\n/path/to\n#!/bin/sh\n",
    "tabs\tand  two   three    four     spaces",
)


def tokenizer_metadata(tokenizer: Tokenizer, backend: tokenizers.Tokenizer, num_rows: int) -> dict[str, Any]:
    """GGUF keys and values for a model whose embedding has `num_rows` rows: rows without a token get a filler.

    Raises `UnsupportedModel` for a tokenizer that no GGUF engine would treat the same.
    """
    model = json.loads(backend.to_str())["model"]
    if model["type"] != "BPE":
        raise UnsupportedModel(f"tokenizer.json: a model of type {model['type']} has no form in GGUF; BPE has")
    tokens, types = _vocabulary(backend, num_rows)
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    if model["byte_fallback"]:
        kind = _sentencepiece(backend, model, tokens, types, merges)
    else:
        kind = _byte_level(backend, model, merges)
    metadata = {**kind, "tokens": tokens, "token_type": [int(number) for number in types]}
    metadata |= _token_ids(tokenizer, num_rows)
    metadata |= {"add_bos_token": tokenizer.adds_bos, "add_eos_token": _adds_eos(tokenizer)}
    keys = {_PREFIX + key: value for key, value in metadata.items()} | _chat_templates(tokenizer)
    _check(tokenizer, keys)
    return keys


def _vocabulary(backend: tokenizers.Tokenizer, num_rows: int) -> tuple[list[str], list[TokenType]]:
    """Texts and types by id. Ids beyond the model's rows have no embedding, so nothing can come of them."""
    added = backend.get_added_tokens_decoder()
    texts = {token_id: text for text, token_id in backend.get_vocab(with_added_tokens=True).items()}
    tokens, types = [], []
    for token_id in range(num_rows):
        text, entry = texts.get(token_id), added.get(token_id)
        if text is None:
            tokens.append(f"[PAD{token_id}]")
            types.append(TokenType.UNUSED)
            continue
        tokens.append(text)
        types.append(
            TokenType.NORMAL if entry is None else TokenType.CONTROL if entry.special else TokenType.USER_DEFINED
        )
    return tokens, types


def _byte_level(
    backend: tokenizers.Tokenizer, model: dict[str, Any], merges: Sequence[Sequence[str]]
) -> dict[str, Any]:
    for name in _WRITTEN_SPLITS:
        split = WORD_SPLITS[name]
        ours = backend.pre_tokenizer
        if ours is None or split.whole_words != bool(model.get("ignore_merges")):
            continue
        if split.composes != _composes(backend):
            continue
        theirs = split.pre_tokenizer()
        if all(ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text) for text in PROBE_TEXTS):
            return {"model": "gpt2", "pre": name, "merges": [" ".join(merge) for merge in merges]}
    raise UnsupportedModel(
        "tokenizer.json: pre_tokenizer cuts words as no GGUF tokenizer that is known here does; "
        f"known are {', '.join(_WRITTEN_SPLITS)}"
    )


def _composes(backend: tokenizers.Tokenizer) -> bool:
    normalizer = backend.normalizer
    return normalizer is not None and normalizer.normalize_str("e\u0301") == "é"


def _sentencepiece(
    backend: tokenizers.Tokenizer,
    model: Mapping[str, Any],
    tokens: list[str],
    types: list[TokenType],
    merges: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Scores stand for the order of merges: a token's is minus the rank of the first merge that makes it."""
    ranks: dict[str, int] = {}
    for left, right in merges:
        ranks.setdefault(left + right, len(ranks))
    user_defined = {token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.USER_DEFINED}
    space_runs = _leading_space_runs(ranks, user_defined)
    scores = []
    for index, token in enumerate(tokens):
        if token == model["unk_token"]:
            types[index] = TokenType.UNKNOWN
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[index] = TokenType.BYTE
        elif token in space_runs:  # spelled as text has them: they are matched before spaces are replaced
            types[index] = TokenType.USER_DEFINED
            tokens[index] = " " * len(token)
        in_order = types[index] == TokenType.NORMAL
        scores.append(float(-ranks.get(token, len(ranks) + index)) if in_order else _USER_DEFINED_SCORE)
    adds_space = bool(backend.encode("a", add_special_tokens=False).tokens[0].startswith(_SPACE))
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": adds_space}


def _leading_space_runs(ranks: Mapping[str, int], user_defined: Set[str]) -> frozenset[str]:
    """Runs of spaces if they are made before any token that is not user-defined: they are so themselves (Gemma)."""
    runs = frozenset(token for token in ranks if len(token) > 1 and not token.strip(_SPACE))
    first = len(runs) + len(user_defined & ranks.keys())
    return runs if len(runs) > 1 and all(ranks[run] < first for run in runs) else frozenset()


def _token_ids(tokenizer: Tokenizer, num_rows: int) -> dict[str, int]:
    ids = {key: tokenizer.token_id(text) for name, key in NAMED_IDS.items()
           if (text := tokenizer.special_tokens.get(name)) is not None}  # fmt: skip
    found = {key: token for key, token in ids.items() if token is not None and token < num_rows}
    known_ends = {tokenizer.token_id(text) for text in TURN_ENDS}
    further = [token for token in tokenizer.eos_ids if token != found.get("eos_token_id") and token < num_rows]
    further.sort(key=lambda token: token not in known_ends)
    if further and "eos_token_id" not in found:
        found["eos_token_id"] = further.pop(0)
    if len(further) > 2:
        raise UnsupportedModel(f"tokenizer: {len(further) + 1} tokens end an answer; GGUF has keys for three")
    return found | dict(zip(("eot_token_id", "eom_token_id"), further, strict=False))


def _adds_eos(tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode("a")
    return len(ids) > 1 and ids[-1] in tokenizer.eos_ids


def _chat_templates(tokenizer: Tokenizer) -> dict[str, Any]:
    if tokenizer.chat_template is None:
        return {}
    sources = dict(tokenizer.chat_template.sources)
    keys: dict[str, Any] = {"tokenizer.chat_template": sources.pop("default")}
    if sources:
        keys["tokenizer.chat_templates"] = sorted(sources)
    return keys | {f"tokenizer.chat_template.{name}": text for name, text in sources.items()}


def _check(tokenizer: Tokenizer, keys: dict[str, Any]) -> None:
    """Build the tokenizer back and compare."""
    from octavo.text.tokenizer import Tokenizer as Rebuilt

    rebuilt = Rebuilt.from_gguf(keys)
    for text in PROBE_TEXTS:
        if rebuilt.encode(text) != tokenizer.encode(text):
            raise UnsupportedModel(f"tokenizer.json: GGUF's rules would cut {text[:40]!r} in another way")
