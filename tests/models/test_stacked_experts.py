"""Experts stored as one tensor, by transformers 5 and in GGUF, are the same model as experts stored one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

from octavo.api import quantize
from octavo.core.errors import UnsupportedModel
from octavo.models.gguf import GgufCheckpoint
from octavo.models.load import build_model, load_model, open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.ops.base import Experts
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from octavo.weights.checkpoint import Checkpoint, num_weights
from octavo.weights.gguf_file import GgufFile
from octavo.weights.inventory import count_storage
from tests.checkpoints import make_tiny, make_tiny_model
from tests.tokenizers import make_byte_tokenizer

FAMILIES = ("mixtral", "qwen3-moe")
TOKENS = [5, 100, 7, 250, 31, 9, 12, 66]
GGUF_ARCHITECTURES = {"mixtral": gguf.MODEL_ARCH.LLAMA, "qwen3-moe": gguf.MODEL_ARCH.QWEN3MOE}


def save_stacked(family: str, directory: Path) -> Path:
    make_tiny_model(family).save_pretrained(directory, save_original_format=False)
    make_byte_tokenizer(directory)
    return directory


def logits(checkpoint: Checkpoint) -> Tensor:
    with torch.inference_mode():
        model = build_model(checkpoint, read_spec(checkpoint.config))
        return model.forward(ReferenceOps(), whole_prompts([TOKENS]))


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_stack(family: str, tmp_path: Path) -> None:
    stacked = open_model_checkpoint(save_stacked(family, tmp_path / "stacked"))
    single = open_model_checkpoint(make_tiny(family, tmp_path / "single"))
    assert stacked.names() == single.names()
    assert [stacked.shape(name) for name in stacked.names()] == [single.shape(name) for name in single.names()]
    assert num_weights(stacked) == num_weights(single)
    assert count_storage(stacked) == count_storage(single)
    assert torch.equal(logits(stacked), logits(single))


def test_a_stack_is_quantized_like_single_experts(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "rtn", "group": 32, "measure": None, "say": lambda line: None}
    quantize(save_stacked("mixtral", tmp_path / "stacked"), tmp_path / "a", **options)
    quantize(make_tiny("mixtral", tmp_path / "single"), tmp_path / "b", **options)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def write_gguf(family: str, path: Path, kind: gguf.GGMLQuantizationType, **metadata: Any) -> Path:
    """A tiny model as llama.cpp's converter lays it out; tensor names are the gguf package's. Experts are of `kind`."""
    model = make_tiny_model(family, mlp_only_layers=[], norm_topk_prob=True, sliding_window=None)
    config, architecture = model.config, GGUF_ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if family == "qwen3-moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for key, value in metadata.items():
        getattr(writer, f"add_{key}")(value)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in stacked_by_role(model.state_dict(), family, config).items():
        values = weight.numpy()
        stored = gguf.quants.quantize(values, kind) if "exps" in str(names.get_name(name)) else values
        writer.add_tensor(
            f"{names.get_name(name)}.weight", stored, raw_dtype=kind if "exps" in names.get_name(name) else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stacked_by_role(state: dict[str, Tensor], family: str, config: Any) -> dict[str, Tensor]:
    """Module name -> tensor; gate and up apart, q and k of Mixtral with neighbouring pairs."""
    tensors: dict[str, Tensor] = {}
    for name, weight in state.items():
        module = name.removesuffix(".weight")
        if module.endswith("gate_up_proj"):
            gate, up = weight.chunk(2, 1)
            tensors[module.replace("gate_up", "gate")] = gate.contiguous()
            tensors[module.replace("gate_up", "up")] = up.contiguous()
        elif family == "mixtral" and module.endswith(("q_proj", "k_proj")):
            heads = weight.reshape(-1, 2, config.head_dim // 2, weight.shape[1])
            tensors[module] = heads.transpose(1, 2).reshape(weight.shape).contiguous()
        else:
            tensors[module] = weight
    return tensors


def open_gguf(path: Path) -> Checkpoint:
    return open_model_checkpoint(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_stack(family: str, tmp_path: Path) -> None:
    checkpoint = open_gguf(write_gguf(family, tmp_path / "m.gguf", gguf.GGMLQuantizationType.F32))
    model = make_tiny_model(family, mlp_only_layers=[], norm_topk_prob=True, sliding_window=None)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert (logits(checkpoint) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_stack_in_blocks(family: str, tmp_path: Path) -> None:
    """One expert is decoded without the others, to the same numbers as the whole tensor."""
    path = write_gguf(family, tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_0)
    file = GgufFile(path)
    for role in ("gate", "up", "down"):
        name = f"blk.1.ffn_{role}_exps.weight"
        assert file.tensor_type(name) == "Q8_0"
        whole = file.get(name)
        assert all(torch.equal(file.get_matrix(name, index), whole[index]) for index in range(len(whole)))
    checkpoint = open_gguf(path)
    stored = sum(map(checkpoint.tensor_bytes, checkpoint.names()))
    assert stored == sum(map(file.tensor_bytes, file.names()))
    assert {count.storage for count in count_storage(checkpoint)} == {"Q8_0", "F32"}


def test_gguf_of_other_experts_is_refused(tmp_path: Path) -> None:
    path = write_gguf("qwen3-moe", tmp_path / "m.gguf", gguf.GGMLQuantizationType.F32, expert_shared_count=1)
    with pytest.raises(UnsupportedModel, match="expert_shared_count"):
        GgufCheckpoint(GgufFile(path))


def test_a_router_stays_float32(tmp_path: Path) -> None:
    directory = make_tiny("mixtral", tmp_path / "m")
    for loaded in (load_model(directory, torch.bfloat16), load_model(directory)):
        mlp = loaded.model.layers[0].mlp
        assert isinstance(mlp, Experts)
        assert mlp.router.weight.dtype == torch.float32
        assert loaded.model.weight_bytes > sum(
            x.weight.nbytes for layer in loaded.model.layers for x in layer.linears()
        )
