"""Small real tokenizers for the tests of every room."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

#: ChatML without a default system turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
#: Words that get tokens of their own, so that tokens span letters, spaces and stop strings.
_WORDS = ("the", " the", " and", "ing", " seven", " eight", " nine", " ten", " Kim", "hello", " world", "stem", "user")


def make_byte_tokenizer(directory: Path) -> Path:
    """Write a byte-level BPE tokenizer directory (about 300 ids) and return it.

    Ids 0..2 are `<|endoftext|>`, `<|im_start|>` (BOS), `<|im_end|>` (EOS), 3..258 the bytes, the rest merges. It adds
    no BOS, pads with 0, and has a ChatML template: the manners of SmolLM2's own.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *_alphabet()])}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        spelled = word.replace(" ", "Ġ")
        for end in range(2, len(spelled) + 1):
            left, right = spelled[: end - 1], spelled[end - 1]
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append((left, right))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0],
        "unk_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return directory


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())
