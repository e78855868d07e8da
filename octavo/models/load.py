"""From a stored model to one that runs: every tensor used, none missing, none left over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField, UnsupportedModel
from octavo.models.decoder import DecoderLayer, DecoderModel
from octavo.models.registry import read_spec
from octavo.models.rope import make_rope
from octavo.models.spec import ModelSpec, RopeSpec
from octavo.models.stacked_experts import StackedExperts, has_stacked_experts
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Attention, Embedding, Experts, GatedMlp, Linear, Norm, Rope
from octavo.weights.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: Dtypes weights may be kept in.
DTYPES = (torch.float32, torch.bfloat16)
#: Tensors some exporters store although they follow from the config.
_DERIVED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.masked_bias")
#: (layers done, layers in all)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with what came with it."""

    model: DecoderModel
    spec: ModelSpec
    tokenizer: Tokenizer
    checkpoint: Checkpoint


def load_model(source: str | Path, dtype: torch.dtype = torch.float32, progress: Progress | None = None) -> LoadedModel:
    """Load a directory, a .gguf file or a catalog name. Packed weights stay packed, other matrices become `dtype`
    (float32 or bfloat16), norms float32.

    Raises `CheckpointError` (damaged files; missing, unused or misshapen tensors), `UnsupportedModel` (config fields).
    """
    checkpoint = open_model_checkpoint(source)
    spec = read_spec(checkpoint.config)
    model = build_model(checkpoint, spec, dtype, progress)
    return LoadedModel(model, spec, checkpoint.tokenizer(), checkpoint)


def open_model_checkpoint(source: str | Path) -> Checkpoint:
    """A checkpoint with Hugging Face names and config, whatever its format: a directory, a .gguf file or a catalog
    name (which may download)."""
    path = Path(source)
    if not path.exists():
        from octavo.models import catalog

        path = catalog.resolve(str(source))
    checkpoint = open_checkpoint(path)
    from octavo.weights.gguf_file import GgufFile

    if isinstance(checkpoint, GgufFile):
        from octavo.models.gguf import GgufCheckpoint

        checkpoint = GgufCheckpoint(checkpoint)
    return _unstacked(checkpoint)


def _unstacked(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint; stacked experts one by one if the model is one that Octavo knows."""
    if not has_stacked_experts(checkpoint):
        return checkpoint
    try:
        return StackedExperts(checkpoint, read_spec(checkpoint.config))
    except UnsupportedModel:
        return checkpoint  # for `inspect`; loading will say what is not understood


def build_model(
    checkpoint: Checkpoint, spec: ModelSpec, dtype: torch.dtype = torch.float32, progress: Progress | None = None
) -> DecoderModel:
    """Read every tensor of `spec` from `checkpoint`. Raises `CheckpointError` as `load_model` does."""
    if dtype not in DTYPES:
        raise InvalidField("dtype", str(dtype).removeprefix("torch."), "float32 and bfloat16 are supported")
    return _Builder(checkpoint, spec, dtype).build(progress)


class _Builder:
    """Takes tensors out of a checkpoint and keeps count of what is left."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, dtype: torch.dtype) -> None:
        self.checkpoint = checkpoint
        self.spec = spec
        self.dtype = dtype
        self.unused = {name for name in checkpoint.names() if not name.endswith(_DERIVED_SUFFIXES)}
        self.ropes: dict[RopeSpec, Rope] = {}

    def build(self, progress: Progress | None) -> DecoderModel:
        spec, names = self.spec, self.spec.names
        table = self._matrix(names.embedding, spec.vocab_size, spec.hidden_size)
        layers = []
        for index in range(spec.num_layers):
            layers.append(self._layer(index))
            if progress is not None:
                progress(index + 1, spec.num_layers)
        model = DecoderModel(
            spec=spec,
            embedding=Embedding(names.embedding, table, spec.embedding_multiplier),
            layers=layers,
            final_norm=self._norm(names.final_norm, spec.hidden_size),
            head=self._head(table),
        )
        if self.unused:
            raise CheckpointError(f"{self.checkpoint.source}: tensors that nothing uses: {_some(self.unused)}")
        return model

    def _head(self, table: Tensor | QuantizedTensor) -> Linear:
        name = self.spec.names.head
        if not self.spec.tied_embedding:
            return self._linear(name, self.spec.hidden_size, self.spec.vocab_size, bias=False)
        stored = f"{name}.weight"
        if stored in self.unused:
            self.unused.discard(stored)
            if not _same(self.checkpoint.get(stored), self.checkpoint.get(f"{self.spec.names.embedding}.weight")):
                raise CheckpointError(
                    f"{self.checkpoint.source}: tie_word_embeddings is true, but {stored} differs from the embedding"
                )
        return Linear(name, table)

    def _layer(self, index: int) -> DecoderLayer:
        spec, names, hidden = self.spec, self.spec.names, self.spec.hidden_size
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

        def linear(module: str, inputs: int, outputs: int, bias: bool) -> Linear:
            return self._linear(names.in_layer(index, module), inputs, outputs, bias)

        def norm(module: str, features: int) -> Norm:
            return self._norm(names.in_layer(index, module), features)

        def optional_norm(module: str | None, features: int) -> Norm | None:
            return None if module is None else norm(module, features)

        return DecoderLayer(
            index=index,
            attention=self._attention(index),
            rope=self._rope(spec.layers[index].rope),
            activation=spec.activation,
            input_norm=norm(names.input_norm, hidden),
            q=linear(names.q, hidden, q_size, spec.qkv_bias),
            k=linear(names.k, hidden, kv_size, spec.qkv_bias),
            v=linear(names.v, hidden, kv_size, spec.qkv_bias),
            o=linear(names.o, q_size, hidden, spec.output_bias),
            mlp_norm=norm(names.mlp_norm, hidden),
            mlp=self._mlp(index),
            q_norm=optional_norm(names.q_norm, spec.head_dim),
            k_norm=optional_norm(names.k_norm, spec.head_dim),
            attention_output_norm=optional_norm(names.attention_output_norm, hidden),
            mlp_output_norm=optional_norm(names.mlp_output_norm, hidden),
        )

    def _mlp(self, index: int) -> GatedMlp | Experts:
        names, size, experts = self.spec.names, self.spec.mlp_size(index), self.spec.layers[index].experts
        if experts is None:
            return self._gated_mlp([names.in_layer(index, name) for name in (names.gate, names.up, names.down)], size)
        modules = (names.expert_gate, names.expert_up, names.expert_down)
        mlps = [
            self._gated_mlp([names.of_expert(index, expert, module) for module in modules], size)
            for expert in range(experts.num_experts)
        ]
        return Experts(
            name=names.in_layer(index, names.experts),
            router=self._router(names.in_layer(index, names.router), experts.num_experts),
            mlps=tuple(mlps),
            experts_per_token=experts.experts_per_token,
            renormalize=experts.renormalize,
            activation=self.spec.activation,
        )

    def _gated_mlp(self, modules: Sequence[str], size: int) -> GatedMlp:
        hidden, bias = self.spec.hidden_size, self.spec.mlp_bias
        gate, up, down = modules
        return GatedMlp(
            gate=self._linear(gate, hidden, size, bias),
            up=self._linear(up, hidden, size, bias),
            down=self._linear(down, size, hidden, bias),
        )

    def _router(self, name: str, num_experts: int) -> Linear:
        """Kept in float32 whatever the other weights are: its rounding decides which experts run."""
        stored = self._take(f"{name}.weight", (num_experts, self.spec.hidden_size))
        dense = stored.dequantize() if isinstance(stored, QuantizedTensor) else stored.to(torch.float32)
        return Linear(name, dense.contiguous())

    def _attention(self, index: int) -> Attention:
        spec = self.spec
        return Attention(
            layer=index,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.attention_scale,
            window=spec.layers[index].window,
            softcap=spec.attention_softcap,
            kv_scales=self.checkpoint.kv_scales(spec.names.in_layer(index, spec.names.q).rpartition(".")[0]),
        )

    def _rope(self, spec: RopeSpec) -> Rope:
        return self.ropes.setdefault(spec, make_rope(spec))

    def _linear(self, name: str, inputs: int, outputs: int, bias: bool) -> Linear:
        weight = self._matrix(name, outputs, inputs)
        offset = self._vector(f"{name}.bias", outputs) if bias else None
        return Linear(name, weight, offset, self.checkpoint.input_quantizer(name))

    def _norm(self, name: str, features: int) -> Norm:
        weight = self._vector(f"{name}.weight", features)
        return Norm(name, weight + self.spec.norm_offset, self.spec.norm_eps)

    def _matrix(self, module: str, rows: int, columns: int) -> Tensor | QuantizedTensor:
        name = f"{module}.weight"
        stored = self._take(name, (rows, columns))
        return stored if isinstance(stored, QuantizedTensor) else stored.to(self.dtype).contiguous()

    def _vector(self, name: str, length: int) -> Tensor:
        stored = self._take(name, (length,))
        if isinstance(stored, QuantizedTensor):
            raise CheckpointError(f"{self.checkpoint.source}: {name} is packed; only matrices may be")
        return stored.to(torch.float32)

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor | QuantizedTensor:
        if name not in self.unused:
            raise CheckpointError(f"{self.checkpoint.source}: missing tensor {name} {list(shape)}")
        self.unused.discard(name)
        stored = self.checkpoint.get(name)
        if tuple(stored.shape) != shape:
            raise CheckpointError(
                f"{self.checkpoint.source}: {name} is {list(stored.shape)}, the config makes it {list(shape)}"
            )
        return stored


def _same(one: Tensor | QuantizedTensor, other: Tensor | QuantizedTensor) -> bool:
    if isinstance(one, QuantizedTensor) or isinstance(other, QuantizedTensor):
        one, other = (x.dequantize() if isinstance(x, QuantizedTensor) else x for x in (one, other))
    return torch.equal(one, other)


def _some(names: set[str], limit: int = 8) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + rest
