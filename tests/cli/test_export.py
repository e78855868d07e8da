"""`octavo export`: from format to format without loss; what cannot be held is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import octavo
from octavo.cli.inspect import examine
from octavo.cli.main import main
from octavo.core.errors import CheckpointError, InvalidField
from octavo.models.load import open_model_checkpoint
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.weights.awq_writer import write_awq
from octavo.weights.bitnet_layout import TERNARY
from octavo.weights.bitnet_writer import write_bitnet
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.engine_limits import engine_notes
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import edit_config, make_tiny
from tests.weights.stored import stored_tiny

INT4 = IntegerScheme(4, 32)
EMBEDDING = "model.embed_tokens"


def numbers(directory: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(directory)
    stored = {name: checkpoint.get(name) for name in checkpoint.names()}
    return {
        name: tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor for name, tensor in stored.items()
    }


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_journey_through_formats_changes_no_number(symmetric: bool, tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32, symmetric))
    write_awq(tmp_path / "awq", model)
    assert octavo.export(tmp_path / "awq", tmp_path / "gptq", "gptq").lossless
    assert octavo.export(tmp_path / "gptq", tmp_path / "ct", "compressed-tensors").lossless
    report = octavo.export(tmp_path / "ct", tmp_path / "back", "awq")
    for step in ("gptq", "ct", "back"):
        assert_equal(numbers(tmp_path / "awq"), numbers(tmp_path / step))
    assert report.output_bytes == open_checkpoint(tmp_path / "back").num_bytes
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("awq", "back"))
    assert_equal(first, last)


def test_a_quantized_embedding_is_refused_or_dense_by_choice(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, INT4, {EMBEDDING: IntegerScheme(8)})
    write_compressed_tensors(tmp_path / "ct", model)
    quality = {"schema_version": 1, "quality": {"perplexity": 12.5}}
    (tmp_path / "ct" / "octavo.json").write_text(json.dumps(quality))
    with pytest.raises(InvalidField, match=r"model\.embed_tokens: it is a quantized embedding"):
        octavo.export(tmp_path / "ct", tmp_path / "gptq", "gptq")
    assert not (tmp_path / "gptq").exists()
    exact = octavo.export(tmp_path / "ct", tmp_path / "gptq", "gptq", dtype="float32")
    assert exact.lossless
    assert exact.dequantized == [EMBEDDING]
    carried = json.loads((tmp_path / "gptq" / "octavo.json").read_text())["quality"]
    assert carried["perplexity"] == 12.5
    assert carried["weight_bytes"] == exact.output_bytes
    rounded = octavo.export(tmp_path / "ct", tmp_path / "gptq", "gptq", dtype="float16")
    assert not rounded.lossless
    assert json.loads((tmp_path / "gptq" / "octavo.json").read_text())["quality"] is None
    assert rounded.output_bytes < exact.output_bytes


def test_dense(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, dense = stored_tiny("llama-tied", tmp_path, INT4, {EMBEDDING: IntegerScheme(8)})
    write_compressed_tensors(tmp_path / "ct", model)
    assert octavo.export(tmp_path / "ct", tmp_path / "hf", "hf", dtype="float32").lossless
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    assert_equal(dict(loaded), dict(dense.state_dict()))
    assert not octavo.export(tmp_path / "ct", tmp_path / "hf", "hf", dtype="bfloat16").lossless
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"


def test_what_a_format_has_no_place_for_is_refused(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, TERNARY)
    write_bitnet(tmp_path / "bitnet", model)
    with pytest.raises(InvalidField, match=r"inputs are int8 per token; GPTQ has weights only"):
        octavo.export(tmp_path / "bitnet", tmp_path / "gptq", "gptq")
    scales = {f"model.layers.{layer}.self_attn": KvScales("fp8", (0.5,) * 2, (0.25,) * 2) for layer in range(3)}
    packed, _ = stored_tiny("llama-tied", tmp_path / "kv", INT4)
    with_scales = StoredModel(packed.tensors, packed.config, packed.tokenizer, kv_scales=scales)
    write_compressed_tensors(tmp_path / "ct", with_scales)
    with pytest.raises(InvalidField, match=r"no place for the KV cache's scales"):
        octavo.export(tmp_path / "ct", tmp_path / "gptq", "gptq")
    assert "fp8, 3 layers" in examine(str(tmp_path / "ct"))["kv_cache"]
    assert not (tmp_path / "gptq").exists()


def test_gguf(tmp_path: Path) -> None:
    """int4 symmetric in groups of 32 is Q4_0, number for number; three bits have no equal and are refused."""
    model, _ = stored_tiny("llama", tmp_path, INT4)
    write_awq(tmp_path / "awq", model)
    report = octavo.export(tmp_path / "awq", tmp_path / "m.gguf", "gguf")
    assert report.lossless
    assert "30 of them exactly the source's" in report.verification
    three_bits, _ = stored_tiny("llama", tmp_path / "three", IntegerScheme(3, 16))
    write_compressed_tensors(tmp_path / "ct", three_bits)
    with pytest.raises(InvalidField, match="no GGUF type holds exactly"):
        octavo.export(tmp_path / "ct", tmp_path / "three.gguf", "gguf")
    assert not (tmp_path / "three.gguf").exists()
    assert not octavo.export(tmp_path / "ct", tmp_path / "three.gguf", "gguf", file_type="Q8_0").lossless


def test_tied_head_stored_twice(tmp_path: Path) -> None:
    """User's case 12: an equal copy is dropped, another one is an error and not a guess."""
    source = make_tiny("llama-tied", tmp_path / "m")
    file = source / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors[f"{EMBEDDING}.weight"].clone()}, file)
    octavo.export(source, tmp_path / "hf", "hf", dtype="float32")
    assert "lm_head.weight" not in open_checkpoint(tmp_path / "hf").names()
    save_file({**tensors, "lm_head.weight": tensors[f"{EMBEDDING}.weight"] + 1}, file)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        octavo.export(source, tmp_path / "hf", "hf", dtype="float32")
    assert any("lm_head.weight differs" in problem for problem in examine(str(source))["problems"])
    edit_config(source, tie_word_embeddings=False)
    save_file(tensors, file)
    assert any("lm_head.weight is missing" in problem for problem in examine(str(source))["problems"])


def test_fused_members_of_different_schemes_are_shown(tmp_path: Path) -> None:
    """User's case 22."""
    model, _ = stored_tiny("llama-tied", tmp_path, INT4, {"layers.1.self_attn.k_proj": None})
    write_compressed_tensors(tmp_path / "ct", model)
    report = examine(str(tmp_path / "ct"))
    assert len(report["warnings"]) == 1
    assert "model.layers.1.self_attn: q_proj int4 symmetric group 32, k_proj dense" in report["warnings"][0]
    groups = {each["pattern"]: each["num_tensors"] for each in report["modules"]}
    assert groups["model.layers.*.self_attn.q_proj"] == 3
    assert groups["model.layers.*.self_attn.k_proj"] == 2


def test_engine_limits_are_told_from_shapes() -> None:
    """Users' cases 7 and 8, on SmolLM2's sizes: 576 divides by 64 and not by 128."""
    schemes = {name: LinearScheme(IntegerScheme(4, 64)) for name in ("q", "down")}
    notes = engine_notes(schemes, {"q": (576, 576), "down": (576, 1536)}, ["down"])
    assert "q [576, 576] do not" in notes[0]
    assert len(notes) == 1
    assert engine_notes(schemes, {"q": (768, 1024), "down": (768, 1536)}, ["down"]) == []
    straddling = engine_notes(schemes, {"q": (1024, 1024), "down": (1024, 640)}, ["down"])
    assert straddling == ["tensor parallelism that keeps groups whole: 2"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, INT4)
    write_awq(tmp_path / "awq", model)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["export", str(tmp_path / "awq"), *arguments])
        return int(left.value.code or 0), *capsys.readouterr()

    code, out, _ = run("--format", "gptq", "-o", str(tmp_path / "gptq"), "--json")
    assert code == 0
    assert json.loads(out)["lossless"] is True
    code, out, _ = run("--format", "gptq", "-o", str(tmp_path / "gptq"))
    assert code == 0
    assert "every number is the source's" in out
    code, _, err = run("--format", "marlin", "-o", str(tmp_path / "x"))
    assert code == 2
    assert "formats are compressed-tensors, gptq, awq" in err
    code, _, err = run("--format", "gptq", "-o", str(tmp_path / "awq"))
    assert code == 2
    assert "is the source itself" in err


def test_statistics_weigh_a_rounding_to_a_ggml_type(tmp_path: Path) -> None:
    """llama.cpp's importance matrix: errors move to inputs that are small on the text."""
    source = make_tiny("llama", tmp_path / "m")
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten\n" * 60)
    cache = octavo.calibrate(source, output=tmp_path / "s", calibration=text, samples=4, sequence_length=64)
    octavo.export(source, tmp_path / "plain.gguf", "gguf", file_type="Q4_0")
    octavo.export(source, tmp_path / "weighed.gguf", "gguf", file_type="Q4_0", statistics=tmp_path / "s")
    files = [open_model_checkpoint(tmp_path / f"{name}.gguf") for name in ("plain", "weighed")]
    importance, exact = cache.mean_squares(), open_checkpoint(source)
    for module in importance:
        rounded = [file.get(f"{module}.weight") for file in files]
        weight = exact.get(f"{module}.weight")
        plain, weighed = (((each.dequantize() - weight).square() @ importance[module]).sum() for each in rounded)
        assert weighed < plain, module
    with pytest.raises(InvalidField, match=r"statistics: got .* give a type"):
        octavo.export(source, tmp_path / "no.gguf", "gguf", statistics=tmp_path / "s")
    other = make_tiny("qwen2", tmp_path / "other")
    with pytest.raises(InvalidField, match="are of another model"):
        octavo.export(other, tmp_path / "no.gguf", "gguf", file_type="Q4_0", statistics=tmp_path / "s")
    assert not (tmp_path / "no.gguf").exists()
