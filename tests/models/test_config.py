"""A config field that changes the computation and is not understood is an error that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import CheckpointError, UnsupportedModel
from octavo.models.load import load_model
from octavo.models.registry import read_spec
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
