"""The tokenizer: text to token ids and back, over the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from octavo.core.errors import CheckpointError, InvalidField
from octavo.text.chat_template import ChatTemplate
from octavo.text.control_tokens import ControlTokenGuard
from octavo.text.messages import prepare_messages, prepare_tools
from octavo.text.token_decoder import TextAssembler, TokenDecoder
from octavo.text.tokenizer_files import TokenizerFiles, read_tokenizer_files, token_text, write_tokenizer_files

_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Tokenizer:
    """Token ids and text of one model.

    `bos_id` is the beginning-of-sequence id whether or not `encode` adds it (`adds_bos` says that); `eos_ids` end an
    answer; `special_ids` are the control tokens that `skip_special_tokens` leaves out; ids are `0..vocab_size - 1`.
    `chat_template` is None for a model without one. Threads may share a tokenizer.
    """

    def __init__(self, backend: tokenizers.Tokenizer, files: TokenizerFiles | None = None) -> None:
        self._files = files or TokenizerFiles()
        self._backend = backend
        backend.no_truncation()
        backend.no_padding()
        _add_configured_tokens(backend, self._files)
        decoder = backend.decoder
        self.decoder = TokenDecoder.from_json(None if decoder is None else json.loads(decoder.__getstate__()))
        self._bytes: dict[int, bytes] = {}
        self._whole_texts: dict[int, str | None] = {}
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.special_tokens = self._files.special_tokens
        self.bos_id = self._named_id("bos_token")
        self.pad_id = self._named_id("pad_token")
        self.unk_id = self._named_id("unk_token")
        eos = self._named_id("eos_token")
        self.eos_ids = tuple(dict.fromkeys((*self._files.eos_ids, *(() if eos is None else (eos,)))))
        templates = self._files.chat_templates
        self.chat_template = ChatTemplate(templates, self.special_tokens) if "default" in templates else None

    @classmethod
    def from_directory(cls, path: str | Path) -> Tokenizer:
        """Read a Hugging Face tokenizer directory. Raises `CheckpointError` if it holds no readable tokenizer.json."""
        directory = Path(path)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(_missing_tokenizer(directory))
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{file}: is not a readable tokenizer ({error})") from None
        return cls(backend, read_tokenizer_files(directory))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from a GGUF file's metadata (key -> Python value). Raises `CheckpointError`, see `gguf_tokenizer`."""
        from octavo.text.gguf_tokenizer import build_gguf_tokenizer

        return cls(*build_gguf_tokenizer(metadata))

    def to_gguf(self, num_rows: int) -> dict[str, Any]:
        """GGUF metadata that `from_gguf` builds an equal tokenizer from, for a model with `num_rows` embedding rows.
        Raises `UnsupportedModel` for a tokenizer without an equal in GGUF, see `gguf_tokenizer_writer`."""
        from octavo.text.gguf_tokenizer_writer import tokenizer_metadata

        return tokenizer_metadata(self, self._backend, num_rows)

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens` adds what the model's tokenizer adds around a text (often a BOS). With
        `parse_special=False`, a control token's text (`<|im_end|>`) is ordinary text and never becomes its id.
        """
        _check_text(text)
        if parse_special:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        ids = self._guard.encode_plain(text)
        if add_special_tokens:
            before, after = self._surroundings
            return [*before, *ids, *after]
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation: the rendered template tokenized once, nothing added around it.

        Control tokens come from the template alone: their text inside a message, a tool call or a tool description
        is encoded as ordinary text. Raises `InvalidField` naming the part of `messages` that cannot be honoured.
        """
        if self.chat_template is None:
            raise InvalidField("messages", "a conversation", "this model has no chat template; send a plain prompt")
        prepared, functions = prepare_messages(messages), prepare_tools(tools)
        marked = self._guard.mark(prepared, functions, variables)
        if marked is None:
            text = self.chat_template.render_prepared(prepared, functions, add_generation_prompt, **variables)
            return self.encode(text, add_special_tokens=False)
        text = self.chat_template.render_prepared(
            marked.messages, marked.tools, add_generation_prompt, **marked.variables
        )
        return self._guard.encode_marked(text, marked.markers)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that form no character become U+FFFD. Ids without a token (a model's padded
        vocabulary) add nothing. Raises `InvalidField` for a negative id."""
        kept = [token for token in ids if not (skip_special_tokens and token in self.special_ids)]
        pieces = [self.piece_bytes(token) for token in kept]
        if kept and self.decoder.first_token_drops:
            pieces[0] = self.piece_bytes(kept[0], first=True)
        return TextAssembler(self.decoder).push_all(pieces)

    def piece_bytes(self, token_id: int, first: bool = False) -> bytes:
        """The bytes a token adds to a decoded text; `first` if it begins the text."""
        if first and self.decoder.first_token_drops:
            return self.decoder.token_bytes(self._token(token_id), first=True)
        piece = self._bytes.get(token_id)
        if piece is None:
            piece = self._bytes[token_id] = self.decoder.token_bytes(self._token(token_id))
        return piece

    def whole_text(self, token_id: int) -> str | None:
        """The text of a token that is made of whole characters, as it stands after other text; None for another."""
        if token_id not in self._whole_texts:
            try:
                self._whole_texts[token_id] = self.piece_bytes(token_id).decode()
            except UnicodeDecodeError:
                self._whole_texts[token_id] = None
        return self._whole_texts[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token: perhaps half a character; a control token's own text; `b""` for an unused id."""
        if token_id in self.special_ids:
            return self._token(token_id).encode()
        return self.piece_bytes(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, e.g. `<|im_end|>`; None if there is none."""
        return self._backend.token_to_id(token)

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` begins a text with the BOS id."""
        return self.bos_id is not None and self._surroundings[0][:1] == [self.bos_id]

    def save(self, directory: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and the chat template; transformers loads an equal tokenizer."""
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(target / "tokenizer.json"))
        write_tokenizer_files(target, self._files)

    @cached_property
    def _guard(self) -> ControlTokenGuard:
        return ControlTokenGuard(self._backend, unk_id=self.unk_id)

    @cached_property
    def _surroundings(self) -> tuple[list[int], list[int]]:
        """The ids that `encode` puts before and after a text."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        whole = self._backend.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise CheckpointError("tokenizer.json: the post-processor changes the tokens of a text, which is not read")

    def _token(self, token_id: int) -> str:
        if token_id < 0:
            raise InvalidField("token_ids", token_id, f"token ids are 0..{self.vocab_size - 1}")
        return self._backend.id_to_token(token_id) or ""

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidField("text", text, "must be a string")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = text[error.start : error.end]
            raise InvalidField("text", found, "half of a surrogate pair is not a character") from None


def _add_configured_tokens(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Tokens that only the configs name become added tokens, as transformers does."""
    known = {entry.content: entry for entry in backend.get_added_tokens_decoder().values()}
    listed = sorted(files.config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    for token in [entry for _, entry in listed]:
        if token_text(token) not in known:
            backend.add_tokens([_added_token(token)])
            known[token_text(token)] = _added_token(token)
    for token in files.special_entries:
        entry = known.get(token_text(token))
        if entry is None or not entry.special:
            backend.add_special_tokens([_added_token(token, special=True)])


def _added_token(token: str | dict[str, Any], special: bool = False) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=special, normalized=False)
    flags = {name: token[name] for name in _ADDED_TOKEN_FLAGS if name in token}
    return AddedToken(token["content"], **(flags | ({"special": True} if special else {})))


def _missing_tokenizer(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory}: is not a directory"
    present = sorted(path.name for path in directory.iterdir())
    hint = "; convert tokenizer.model with transformers' AutoTokenizer and save_pretrained"
    return (
        f"{directory}: has no tokenizer.json (there are: {', '.join(present) or 'no files'})"
        f"{hint if 'tokenizer.model' in present else ''}"
    )
