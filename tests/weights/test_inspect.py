"""`octavo inspect` on a quantized model, on a plain one, and on numbers that are not sane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.cli.inspect import examine
from octavo.cli.main import main
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.checkpoint import true_bits_per_weight
from octavo.weights.safetensors_directory import SafetensorsDirectory
from octavo.weights.sanity import find_problems
from tests.checkpoints import edit_config, make_tiny
from tests.weights.quantized import quantize_tiny


def octavo(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line, run in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0), *capsys.readouterr()


def test_quantized_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantized = quantize_tiny("llama-tied", tmp_path, IntegerScheme(4, 32), IntegerScheme(8))
    (quantized.directory / "octavo.json").write_text('{"quality": {"perplexity": 12.5, "notes": ["a", "b"]}}')
    code, out, _ = octavo(capsys, "inspect", str(quantized.directory), "--json")
    assert code == 0
    report = json.loads(out)
    assert report["true_bits_per_weight"] == quantized.written.true_bits_per_weight
    assert report["num_weights"] == sum(parameter.numel() for parameter in quantized.dense.parameters())
    assert report["architecture"]["tied_embedding"] is True
    assert report["problems"] == []
    assert report["quality"]["perplexity"] == 12.5
    by_storage = {count["storage"]: count for count in report["storage"]}
    assert by_storage["int4 symmetric group 32, pack-quantized"]["num_tensors"] == 21
    assert by_storage["int8 symmetric per channel, int-quantized"]["num_tensors"] == 1
    _, shown, _ = octavo(capsys, "inspect", str(quantized.directory))
    for text in ("LlamaForCausalLM", "perplexity", "12.5", "sane", "int4 symmetric group 32"):
        assert text in shown


def test_plain_model_counts_a_tied_head_once(tmp_path: Path) -> None:
    source = make_tiny("llama-tied", tmp_path / "m")
    checkpoint = SafetensorsDirectory(source)
    bits = true_bits_per_weight(checkpoint)
    assert 32 < bits < 33
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, source / "model.safetensors")
    assert true_bits_per_weight(SafetensorsDirectory(source)) > bits + 2


def test_numbers_that_are_not_sane(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantized = quantize_tiny("llama-tied", tmp_path, IntegerScheme(4, 32), IntegerScheme(8))
    file = quantized.directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["model.layers.0.mlp.up_proj.weight_scale"][0, 0] = 0
    tensors["model.layers.1.mlp.up_proj.weight_scale"][3, 1] = torch.inf
    tensors["model.norm.weight"][5] = torch.nan
    save_file(tensors, file)
    problems = examine(str(quantized.directory))["problems"]
    assert len(problems) == 3
    assert any("layers.0.mlp.up_proj.weight: 1 of 480 scales are zero" in problem for problem in problems)
    assert any("layers.1.mlp.up_proj.weight: 1 of 480 scales are NaN or infinite" in problem for problem in problems)
    assert any("model.norm.weight: 1 of 96 values are NaN or infinite" in problem for problem in problems)
    assert octavo(capsys, "inspect", str(quantized.directory))[0] == 1
    assert octavo(capsys, "inspect", str(quantized.directory), "--no-check")[0] == 0


def test_a_model_that_octavo_does_not_run_is_still_shown(tmp_path: Path) -> None:
    source = edit_config(make_tiny("llama", tmp_path / "m"), architectures=["BloomForCausalLM"], model_type="bloom")
    architecture = examine(str(source), check=False)["architecture"]
    assert architecture["name"] == "BloomForCausalLM"
    assert architecture["supported"] is False
    assert find_problems(SafetensorsDirectory(source)) == []


def test_user_errors_are_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    code, out, err = octavo(capsys, "inspect", str(tmp_path), "--json")
    assert code == 2
    assert out == ""
    assert "pickles" in err
    assert "Traceback" not in err
