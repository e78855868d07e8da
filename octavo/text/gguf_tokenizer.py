"""Tokenizers from GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from octavo.core.errors import CheckpointError
from octavo.text.pre_tokenizer import find_word_split
from octavo.text.tokenizer_files import TokenizerFiles

_PREFIX = "tokenizer.ggml."
_SPACE = "▁"
NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # GGUF's own spelling
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
#: Tokens that close a turn; one that the chat template writes ends an answer even if no key says so.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endofturn|>", "<|end_of_text|>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as SentencePiece numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


#: Never made by merging smaller tokens.
_NOT_MERGED = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED, TokenType.BYTE})


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TokenizerFiles]:
    """The backend and settings that `metadata` (GGUF key -> Python value) describes.

    Raises `CheckpointError` naming the key that is missing or not understood.
    """
    kind = _required(metadata, "model")
    tokens: list[str] = list(_required(metadata, "tokens"))
    types = [int(number) for number in metadata.get(f"{_PREFIX}token_type", [TokenType.NORMAL] * len(tokens))]
    if len(types) != len(tokens):
        raise CheckpointError(f"GGUF metadata {_PREFIX}token_type: has {len(types)} entries for {len(tokens)} tokens")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(metadata, tokens)
    elif kind == "llama":
        backend, adds_bos = _sentencepiece(metadata, tokens, types), True
    else:
        raise CheckpointError(f"GGUF metadata {_PREFIX}model: is {kind!r}; gpt2 and llama are read")
    _add_tokens(backend, tokens, types)
    files = _settings(metadata, tokens, adds_bos)
    backend.post_processor = _post_processor(files, backend)
    return backend, files


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    split = find_word_split(metadata.get(f"{_PREFIX}pre"))
    merges = [_pair(merge) for merge in _required(metadata, "merges")]
    vocabulary = _vocabulary(tokens)
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.whole_words)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"GGUF metadata {_PREFIX}merges: do not fit the tokens ({error})") from None
    backend = tokenizers.Tokenizer(model)
    normalizer = split.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, split.adds_bos


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    adds_space = bool(metadata.get(f"{_PREFIX}add_space_prefix", True))
    # Runs of spaces may be spelled as themselves (Gemma); text never has any once spaces are normalized.
    tokens[:] = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    unknown = metadata.get(f"{_PREFIX}unknown_token_id")
    scores = _required(metadata, "scores")
    if len(scores) != len(tokens):
        raise CheckpointError(f"GGUF metadata {_PREFIX}scores: has {len(scores)} entries for {len(tokens)} tokens")
    model = models.BPE(
        vocab=_vocabulary(tokens),
        merges=recover_merges(tokens, scores, types),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(content=" ", left=1)] if adds_space else []),
        ]
    )
    if adds_space:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
    return backend


def recover_merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE vocabulary, best first.

    SentencePiece joins the neighbours whose union is the best token (Kudo and Richardson 2018); so every way to cut a
    token into two tokens is a merge, ranked by the token's score and then by the ids of its parts. User-defined tokens
    (runs of spaces) are never cut by SentencePiece, so they are made first.
    """
    merged = [index for index, kind in enumerate(types) if kind not in _NOT_MERGED]
    ids = {tokens[index]: index for index in merged}
    order = sorted(merged, key=lambda index: (types[index] != TokenType.USER_DEFINED, -scores[index]))
    merges: list[tuple[str, str]] = []
    for index in order:
        token = tokens[index]
        cuts = []
        for cut in range(1, len(token)):
            left = ids.get(token[:cut])
            if left is not None:
                right = ids.get(token[cut:])
                if right is not None:
                    cuts.append((left, right))
        if len(cuts) > 1:
            cuts.sort()
        merges += [(tokens[left], tokens[right]) for left, right in cuts]
    return merges


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control and user-defined tokens are matched whole in a text; only control tokens are special."""
    added = []
    for token, kind in zip(tokens, types, strict=True):
        is_space_run = token and not token.strip(_SPACE)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN) or (kind == TokenType.USER_DEFINED and not is_space_run):
            added.append(AddedToken(token, normalized=False, special=kind != TokenType.USER_DEFINED))
    backend.add_tokens(added)


def _settings(metadata: Mapping[str, Any], tokens: list[str], adds_bos: bool) -> TokenizerFiles:
    config: dict[str, Any] = {}
    for name, key in NAMED_IDS.items():
        token = metadata.get(_PREFIX + key)
        if token is not None:
            config[name] = tokens[_checked_id(key, token, len(tokens))]
    for name, implied in (("add_bos_token", adds_bos), ("add_eos_token", False)):
        config[name] = bool(metadata.get(_PREFIX + name, implied))
    if config["add_bos_token"] and "bos_token" not in config:
        config["add_bos_token"] = False
    prefix = "tokenizer.chat_template"
    templates = {"default" if key == prefix else key.removeprefix(f"{prefix}."): str(value)
                 for key, value in metadata.items() if key == prefix or key.startswith(f"{prefix}.")}  # fmt: skip
    eos = [_checked_id(key, metadata[_PREFIX + key], len(tokens)) for key in _EOS_KEYS if _PREFIX + key in metadata]
    written = templates.get("default", "")
    eos += [tokens.index(token) for token in TURN_ENDS if token in written and token in tokens]
    return TokenizerFiles(config, templates, tuple(dict.fromkeys(eos)))


def _post_processor(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> TemplateProcessing:
    """Puts BOS before and EOS after a text as the settings say."""
    names = files.special_tokens
    bos = names.get("bos_token") if files.config["add_bos_token"] else None
    eos = names.get("eos_token") if files.config["add_eos_token"] else None
    single = " ".join(filter(None, (bos and f"{bos}:0", "$A:0", eos and f"{eos}:0")))
    pair = " ".join(filter(None, (single, bos and f"{bos}:1", "$B:1", eos and f"{eos}:1")))
    used = [(token, backend.token_to_id(token)) for token in dict.fromkeys(filter(None, (bos, eos)))]
    return TemplateProcessing(single=single, pair=pair, special_tokens=used)


def _checked_id(key: str, token: int, num_tokens: int) -> int:
    if not 0 <= token < num_tokens:
        raise CheckpointError(f"GGUF metadata {_PREFIX}{key}: is {token}, token ids are 0..{num_tokens - 1}")
    return int(token)


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(_PREFIX + key)
    if value is None:
        raise CheckpointError(f"GGUF metadata {_PREFIX}{key}: is missing, so there is no tokenizer")
    return value


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise CheckpointError(f"GGUF metadata {_PREFIX}tokens: {twice!r} stands twice")
    return vocabulary


def _pair(merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator:
        raise CheckpointError(f"GGUF metadata {_PREFIX}merges: {merge!r} is not two tokens")
    return left, right
