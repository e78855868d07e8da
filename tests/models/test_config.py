"""A config field that changes the computation and is not understood is an error that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import CheckpointError, UnsupportedModel
from octavo.models.load import load_model
from octavo.models.registry import read_spec
from octavo.models.spec import ExpertsSpec
from tests.checkpoints import edit_config, make_tiny

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


MIXTURE = {**LLAMA, "num_experts_per_tok": 2, "num_local_experts": 4}
MIXTRAL = {**MIXTURE, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
QWEN3_MOE = {
    **MIXTURE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "extra": 1}}, "extra"),
        ({"num_experts": 8}, "num_experts"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"model_type": "mistral"}, "model_type"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_spec({**LLAMA, **fields})


@pytest.mark.parametrize(
    ("config", "fields", "named"),
    [
        (MIXTRAL, {"num_experts_per_tok": 5}, "num_experts_per_tok is 5: there are only 4"),
        (MIXTRAL, {"num_local_experts": 0}, "num_local_experts"),
        (MIXTRAL, {"num_experts": 8}, "contradicts num_experts"),
        (MIXTRAL, {"moe_intermediate_size": 8}, "moe_intermediate_size"),
        (MIXTRAL, {"norm_topk_prob": False}, "norm_topk_prob"),
        (MIXTRAL, {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
        (QWEN3_MOE, {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
        (QWEN3_MOE, {"mlp_only_layers": [2]}, "mlp_only_layers"),
        (QWEN3_MOE, {"mlp_only_layers": 1}, "mlp_only_layers"),
        (QWEN3_MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        (QWEN3_MOE, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "max_window_layers"),
        (QWEN3_MOE, {"hidden_act": "relu"}, "hidden_act"),
    ],
)
def test_mixtures_are_refused_by_name(config: dict[str, Any], fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_spec({**config, **fields})


def test_which_layers_are_mixtures() -> None:
    """As published (Mixtral 8x7B's window is null, Qwen3-30B-A3B's is off), and with every kind of dense layer."""
    mixtral = read_spec({**MIXTRAL, "sliding_window": None, "router_aux_loss_coef": 0.02, "rope_theta": 1e6})
    assert {layer.experts for layer in mixtral.layers} == {ExpertsSpec(4, 2, 96, True)}
    fields = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    inert = {"max_window_layers": 48, "sliding_window": None, "use_sliding_window": False}
    qwen = read_spec({**QWEN3_MOE, **fields, **inert})
    assert [layer.experts is not None for layer in qwen.layers] == [False, True, False, False, False, True]
    assert qwen.layers[1].experts == ExpertsSpec(4, 2, 48, True)
    assert {layer.window for layer in qwen.layers} == {None}
    renamed = {**QWEN3_MOE, **fields, "num_experts": 4}
    del renamed["num_local_experts"]
    assert read_spec(renamed) == qwen


def test_old_and_new_rope_fields_mean_the_same() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old = read_spec({**LLAMA, "rope_theta": 5e5, "rope_scaling": scaling})
    new = read_spec({**LLAMA, "rope_parameters": {"rope_theta": 5e5, **scaling}})
    assert old == new
    assert old.layers[0].rope.theta == 5e5
    assert old.layers[0].rope.get("original_max_position_embeddings", 0) == 128


def test_inert_and_null_fields_are_accepted() -> None:
    assert read_spec({**LLAMA, "use_cache": True, "pretraining_tp": 2, "something_new": None}) == read_spec(LLAMA)


def test_missing_and_unused_tensors_are_named(tmp_path: Path) -> None:
    directory = make_tiny("llama", tmp_path / "model", num_hidden_layers=2)
    with pytest.raises(CheckpointError, match=r"nothing uses: model\.layers\.1\."):
        load_model(edit_config(directory, num_hidden_layers=1))
    with pytest.raises(CheckpointError, match=r"missing tensor model\.layers\.2\."):
        load_model(edit_config(directory, num_hidden_layers=3))
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        load_model(edit_config(directory, num_hidden_layers=2, tie_word_embeddings=True))
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is True
