"""Which tensors a GGUF file of a model has, under which names, and what each is made of."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from octavo.models.spec import ModelSpec

#: GGUF's name of a layer's module -> the field of `ModuleNames`; for families whose `mlp_norm` stands before the MLP.
_NORMS = {
    "attn_norm": "input_norm",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "post_attention_norm": "attention_output_norm",
    "ffn_norm": "mlp_norm",
    "post_ffw_norm": "mlp_output_norm",
}
_HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
_ATTENTION = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o"}
_MLP = {"ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}
_EXPERTS = {"ffn_gate_exps": "expert_gate", "ffn_up_exps": "expert_up", "ffn_down_exps": "expert_down"}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`sources` are Hugging Face names of tensors of `source_shape`: one, or one for each expert of a stack.

    `module` is GGUF's name of a matrix that gets a type (`attn_q`, `token_embd`, or `head` for what computes
    logits), None for what stays float32. `rotated_heads`: rows belong to so many heads that are rotated.
    """

    name: str
    sources: tuple[str, ...]
    source_shape: tuple[int, ...]
    module: str | None = None
    layer: int = 0
    rotated_heads: int = 0
    is_norm: bool = False
    is_stack: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sources), *self.source_shape) if self.is_stack else self.source_shape

    @property
    def num_dimensions(self) -> int:
        return len(self.shape)


def list_tensors(spec: ModelSpec, stored: Container[str], tied: bool) -> list[GgufTensor]:
    """All tensors of the file in its order. `stored` says which biases the model has."""
    names, table_shape = spec.names, (spec.vocab_size, spec.hidden_size)
    found = [
        GgufTensor("token_embd.weight", (f"{names.embedding}.weight",), table_shape, "head" if tied else "token_embd"),
        GgufTensor("output_norm.weight", (f"{names.final_norm}.weight",), (spec.hidden_size,), is_norm=True),
    ]
    if not tied:
        found.append(GgufTensor("output.weight", (f"{names.head}.weight",), table_shape, "head"))
    for layer in range(spec.num_layers):
        found += _norms(spec, layer)
        found += _attention(spec, layer, stored)
        found += _mlp(spec, layer, stored) if spec.layers[layer].experts is None else _experts(spec, layer)
    return found


def _norms(spec: ModelSpec, layer: int) -> Iterator[GgufTensor]:
    for module, field in _NORMS.items():
        own_name = getattr(spec.names, field)
        if own_name is None:
            continue
        width = spec.head_dim if module in _HEAD_NORMS else spec.hidden_size
        source = f"{spec.names.in_layer(layer, own_name)}.weight"
        yield GgufTensor(f"blk.{layer}.{module}.weight", (source,), (width,), None, layer, is_norm=True)


def _attention(spec: ModelSpec, layer: int, stored: Container[str]) -> Iterator[GgufTensor]:
    query_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = {
        "attn_q": (query_rows, spec.hidden_size),
        "attn_k": (kv_rows, spec.hidden_size),
        "attn_v": (kv_rows, spec.hidden_size),
        "attn_output": (spec.hidden_size, query_rows),
    }
    heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}
    for module, field in _ATTENTION.items():
        source = spec.names.in_layer(layer, getattr(spec.names, field))
        yield from _linear(module, source, shapes[module], layer, stored, heads.get(module, 0))


def _mlp(spec: ModelSpec, layer: int, stored: Container[str]) -> Iterator[GgufTensor]:
    wide, narrow = spec.intermediate_size, spec.hidden_size
    for module, field in _MLP.items():
        shape = (narrow, wide) if module == "ffn_down" else (wide, narrow)
        yield from _linear(module, spec.names.in_layer(layer, getattr(spec.names, field)), shape, layer, stored)


def _experts(spec: ModelSpec, layer: int) -> Iterator[GgufTensor]:
    experts = spec.layers[layer].experts
    assert experts is not None
    router = f"{spec.names.in_layer(layer, spec.names.router)}.weight"
    yield GgufTensor(
        f"blk.{layer}.ffn_gate_inp.weight", (router,), (experts.num_experts, spec.hidden_size), None, layer
    )
    wide, narrow = experts.intermediate_size, spec.hidden_size
    for module, field in _EXPERTS.items():
        shape = (narrow, wide) if module == "ffn_down_exps" else (wide, narrow)
        own_names = (
            spec.names.of_expert(layer, expert, getattr(spec.names, field)) for expert in range(experts.num_experts)
        )
        sources = tuple(f"{own_name}.weight" for own_name in own_names)
        yield GgufTensor(f"blk.{layer}.{module}.weight", sources, shape, module, layer, is_stack=True)


def _linear(
    module: str, source: str, shape: tuple[int, int], layer: int, stored: Container[str], heads: int = 0
) -> Iterator[GgufTensor]:
    yield GgufTensor(f"blk.{layer}.{module}.weight", (f"{source}.weight",), shape, module, layer, heads)
    if f"{source}.bias" in stored:
        yield GgufTensor(f"blk.{layer}.{module}.bias", (f"{source}.bias",), shape[:1], None, layer, heads)
