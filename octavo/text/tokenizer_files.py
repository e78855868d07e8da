"""The files of a Hugging Face tokenizer directory: what they say, and writing them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.core.errors import CheckpointError

#: Names under which a config gives special tokens; templates see them as variables.
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ADDITIONAL_NAMES = ("additional_special_tokens", "extra_special_tokens")
#: Config entries that tokenizer.json or chat_template.jinja carry already, or that name files or code.
_NOT_SAVED = {"added_tokens_decoder", "auto_map", "chat_template", "tokenizer_file", "vocab_file", "name_or_path"}


@dataclass(slots=True)
class TokenizerFiles:
    """A directory's settings. `config` is tokenizer_config.json without its chat template, special tokens as the
    files give them (text or an added-token dict); `eos_ids` come from generation_config.json."""

    config: dict[str, Any] = field(default_factory=dict)
    chat_templates: dict[str, str] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()

    @property
    def special_tokens(self) -> dict[str, str]:
        """Named special tokens as plain text, e.g. `{"bos_token": "<s>"}`."""
        return {name: token_text(self.config[name]) for name in SPECIAL_TOKEN_NAMES if self.config.get(name)}

    @property
    def special_entries(self) -> list[str | dict[str, Any]]:
        """All special tokens, named and additional, as the files give them: text or an added-token dict."""
        found: list[Any] = [self.config[name] for name in SPECIAL_TOKEN_NAMES if self.config.get(name)]
        for name in _ADDITIONAL_NAMES:
            tokens = self.config.get(name) or []
            found.extend(tokens.values() if isinstance(tokens, dict) else tokens)
        return found


def token_text(token: str | dict[str, Any]) -> str:
    """A special token's text, given as text or as an added-token dict."""
    return token if isinstance(token, str) else str(token["content"])


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Read everything but tokenizer.json. Raises `CheckpointError` for a file that is not JSON."""
    config = read_json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config.update(read_json(directory / "special_tokens_map.json"))
    embedded = config.pop("chat_template", None)
    templates = _read_chat_templates(directory) or _named_templates(embedded)
    generation = read_json(directory / "generation_config.json")
    eos = generation.get("eos_token_id")
    if eos is None:
        eos = []
    return TokenizerFiles(config, templates, tuple(eos) if isinstance(eos, list) else (int(eos),))


def read_json(path: Path) -> dict[str, Any]:
    """The file's object, `{}` if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(content).__name__}, an object is expected")
    return content


def write_tokenizer_files(directory: Path, files: TokenizerFiles) -> None:
    """Write tokenizer_config.json and the chat templates so that transformers reads tokenizer.json as it stands."""
    config = {name: value for name, value in files.config.items() if name not in _NOT_SAVED}
    # A model's own tokenizer class would rebuild the pipeline from the vocabulary and may not agree with the file.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["clean_up_tokenization_spaces"] = False
    config.update(files.special_tokens)  # as plain text: tokenizer.json carries how they are matched
    for name in _ADDITIONAL_NAMES:
        if isinstance(config.get(name), list):
            config[name] = [token_text(token) for token in config[name]]
    text = json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    for name, template in files.chat_templates.items():
        path = directory / "chat_template.jinja"
        if name != "default":
            path = directory / "additional_chat_templates" / f"{name}.jinja"
            path.parent.mkdir(exist_ok=True)
        path.write_bytes(template.encode())


def _read_chat_templates(directory: Path) -> dict[str, str]:
    paths = {"default": directory / "chat_template.jinja"}
    paths.update({path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))})
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}


def _named_templates(embedded: Any) -> dict[str, str]:
    """The config's `chat_template`: a text, a list of `{name, template}` or nothing."""
    if isinstance(embedded, str):
        return {"default": embedded}
    if isinstance(embedded, list):
        return {entry["name"]: entry["template"] for entry in embedded}
    return dict(embedded or {})
