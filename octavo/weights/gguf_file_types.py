"""GGUF file types: which storage type each tensor of a model gets (llama.cpp's `llama_ftype`, by its rules).

A K-quant file is a mixture: the head, and in some layers attention's values and the MLP's output, get more bits.
Where rows are not whole blocks a wider type takes over: that is a `Fallback`, to be said to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octavo.core.errors import InvalidField
from octavo.numerics.ggml import BLOCK_SIZES

#: Type that takes over where rows are not whole blocks; after these, F16.
_WIDER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def _is_sensitive(layer: int, num_layers: int) -> bool:
    """The first and last eighth, and every third layer between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _in_first(share: int) -> Callable[[int, int], bool]:
    return lambda layer, num_layers: layer < num_layers // share


def _always(layer: int, num_layers: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Rule:
    """`type_name` for the layers that `applies` to."""

    type_name: str
    applies: Callable[[int, int], bool] = _always


@dataclass(frozen=True, slots=True)
class FileType:
    """`number` is llama_ftype's; `base` for all matrices but the `head` (or the table that serves as one) and those
    with a rule, the first that applies, by GGUF's name of the module."""

    number: int
    base: str
    head: str
    rules: Mapping[str, tuple[_Rule, ...]] = field(default_factory=dict)

    def tensor_type(self, module: str, layer: int, num_layers: int) -> str:
        """`module` as in `blk.<layer>.<module>.weight`, or `token_embd`; `head` for what computes logits."""
        if module == "head":
            return self.head
        for rule in self.rules.get(module.removesuffix("_exps"), ()):
            if rule.applies(layer, num_layers):
                return rule.type_name
        return self.base


_MORE_Q6 = (_Rule("Q6_K", _is_sensitive),)
_SMALL_Q4 = {"attn_v": (_Rule("Q5_K", lambda layer, _: layer < 4),), "ffn_down": (_Rule("Q5_K", _in_first(8)),)}
_Q3_MIX = {
    "attn_v": (_Rule("Q5_K", lambda layer, _: layer < 2), _Rule("Q4_K")),
    "attn_output": (_Rule("Q4_K"),),
    "ffn_down": (_Rule("Q5_K", _in_first(16)), _Rule("Q4_K", _is_sensitive)),
}
_Q2_MIX = {"attn_v": (_Rule("Q4_K"),), "attn_output": (_Rule("Q3_K"),), "ffn_down": (_Rule("Q3_K"),)}

FILE_TYPES = {
    "F32": FileType(0, "F32", "F32"),
    "F16": FileType(1, "F16", "F16"),
    "BF16": FileType(32, "BF16", "BF16"),
    "Q8_0": FileType(7, "Q8_0", "Q8_0"),
    "Q4_0": FileType(2, "Q4_0", "Q6_K"),
    "Q4_1": FileType(3, "Q4_1", "Q6_K"),
    "Q5_0": FileType(8, "Q5_0", "Q6_K"),
    "Q5_1": FileType(9, "Q5_1", "Q6_K"),
    "Q2_K": FileType(10, "Q2_K", "Q6_K", _Q2_MIX),
    "Q3_K_M": FileType(12, "Q3_K", "Q6_K", _Q3_MIX),
    "Q4_K_S": FileType(14, "Q4_K", "Q6_K", _SMALL_Q4),
    "Q4_K_M": FileType(15, "Q4_K", "Q6_K", {"attn_v": _MORE_Q6, "ffn_down": _MORE_Q6}),
    "Q5_K_S": FileType(16, "Q5_K", "Q6_K"),
    "Q5_K_M": FileType(17, "Q5_K", "Q6_K", {"attn_v": _MORE_Q6, "ffn_down": _MORE_Q6}),
    "Q6_K": FileType(18, "Q6_K", "Q6_K"),
}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
#: What a file is called whose tensors are stored as the source has them, by its commonest type.
STORED_NUMBERS = {"F32": 0, "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7,
                  "TQ2_0": 37, "MXFP4": 38}  # fmt: skip


def find_file_type(name: str) -> FileType:
    """The file type called `name`, any case. Raises `InvalidField` with those there are."""
    upper = name.upper()
    found = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if found is None:
        raise InvalidField("type", name, f"GGUF file types are {', '.join(FILE_TYPES)}")
    return found


def fitting_type(wanted: str, columns: int) -> str:
    """`wanted`, or the type that takes over where rows of `columns` are not whole blocks of it."""
    if columns % BLOCK_SIZES[wanted][0] == 0:
        return wanted
    wider = _WIDER.get(wanted)
    return wider if wider is not None and columns % BLOCK_SIZES[wider][0] == 0 else "F16"
