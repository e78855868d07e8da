"""Every compressed-tensors layout, written, read back, decoded by the package, and run by transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.core.errors import CheckpointError, InvalidField
from octavo.models.load import load_model
from octavo.numerics.activations import ActivationFormat, InputQuantizer
from octavo.numerics.float_grid import encode_float
from octavo.numerics.float_scheme import FloatFormat, FloatScheme
from octavo.numerics.integer import encode
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from octavo.quantize.file_size import stored_parts
from octavo.quantize.schemes import NAMED
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.compressed_tensors_verification import verify_with_compressed_tensors
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import make_tiny, make_tiny_model

SCHEMES = [name for name in NAMED if name != "ternary"]
IDS = list(range(7, 300, 12))


def quantized_matrix(weight: torch.Tensor, scheme: LinearScheme) -> QuantizedTensor:
    if not isinstance(scheme.weights, IntegerScheme):
        return encode_float(weight, scheme.weights)
    encoded = encode(weight, scheme.weights)
    return PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme.weights)


@dataclass
class Written:
    """`dense` is the transformers model with the dequantized weights."""

    directory: Path
    model: StoredModel
    dense: Any


def write_tiny(folder: Path, name: str, kv: KvScales | None = None, family: str = "llama") -> Written:
    source = make_tiny(family, folder / "source")
    dense, scheme = make_tiny_model(family), NAMED[name]
    tensors: dict[str, Any] = {}
    inputs: dict[str, InputQuantizer] = {}
    with torch.no_grad():
        for key, weight in dense.state_dict().items():
            module = key.removesuffix(".weight")
            if not module.endswith("_proj"):
                tensors[key] = weight.clone()
                continue
            tensors[key] = quantized_matrix(weight, scheme)
            weight.copy_(tensors[key].dequantize())
            if scheme.inputs is not None:
                inputs[module] = InputQuantizer(scheme.inputs, scheme.inputs.calibrated(6.0))
    attentions = {key.rpartition(".q_proj")[0] for key in tensors if ".q_proj" in key}
    scales = dict.fromkeys(attentions, kv) if kv else {}
    config = json.loads((source / "config.json").read_text())
    model = StoredModel(tensors, config, inputs=inputs, kv_scales=scales)
    write_compressed_tensors(folder / "m", model)
    (folder / "m" / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return Written(folder / "m", model, dense)


@pytest.mark.parametrize("name", SCHEMES)
def test_reads_back_and_the_package_decodes_the_same(name: str, tmp_path: Path) -> None:
    written = write_tiny(tmp_path, name)
    checkpoint = open_checkpoint(written.directory)
    assert checkpoint.names() == sorted(written.model.tensors)
    for key, tensor in written.model.tensors.items():
        stored = checkpoint.get(key)
        assert checkpoint.shape(key) == tuple(tensor.shape)
        if isinstance(tensor, QuantizedTensor):
            assert isinstance(stored, QuantizedTensor)
            assert stored.scheme == tensor.scheme == checkpoint.scheme(key)
            assert torch.equal(stored.dequantize(), tensor.dequantize())
            assert_same_inputs(checkpoint.input_quantizer(key.removesuffix(".weight")), NAMED[name])
        else:
            assert torch.equal(stored, tensor)  # type: ignore[arg-type]
    verification = verify_with_compressed_tensors(written.directory)
    assert verification.max_difference == 0
    assert verification.num_modules == 21


def assert_same_inputs(quantizer: InputQuantizer | None, scheme: LinearScheme) -> None:
    assert (quantizer is None) == (scheme.inputs is None)
    if quantizer is not None and scheme.inputs is not None:
        expected = scheme.inputs.calibrated(6.0)
        assert quantizer.scheme == scheme.inputs
        assert (quantizer.scale is None) == (expected is None)
        assert quantizer.scale is None or torch.equal(quantizer.scale, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEMES)
def test_bytes_are_known_from_shapes(name: str, tmp_path: Path) -> None:
    """Users' case 23: an FP8 file must not be larger than it says."""
    written = write_tiny(tmp_path, name)
    checkpoint = open_checkpoint(written.directory)
    for key, tensor in written.model.tensors.items():
        if isinstance(tensor, QuantizedTensor):
            scheme = NAMED[name]
            parts = stored_parts(key.removesuffix(".weight"), tensor.shape, scheme.weights, "F16", inputs=scheme.inputs)
            assert sum(part.num_bytes for part in parts) == checkpoint.tensor_bytes(key)
            assert checkpoint.tensor_bytes(key) < 1.2 * tensor.shape[0] * tensor.shape[1]


def logits(directory: Path) -> torch.Tensor:
    model = load_model(directory).model
    with torch.inference_mode():
        return model.forward(ReferenceOps(), whole_prompts([IDS]))  # type: ignore[no-any-return]


def deviation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Root mean square of the difference, in standard deviations of `other`."""
    return float((one - other).square().mean().sqrt() / other.std())


@pytest.mark.parametrize("name", SCHEMES)
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    """Weights are ours once they are decompressed, and inputs are rounded as ours are, which transformers emulates. The
    package decodes FP4 and MXFP8 to bfloat16, so such models run in bfloat16 alone; int8 inputs it divides by 127.5
    where engines, and we, divide by 127."""
    transformers = pytest.importorskip("transformers")
    written, scheme = write_tiny(tmp_path, name), NAMED[name]
    in_bfloat16 = name.startswith(("nvfp4", "mxfp"))
    dtype = torch.bfloat16 if in_bfloat16 else torch.float32
    loaded = transformers.AutoModelForCausalLM.from_pretrained(written.directory, dtype=dtype).eval()
    with torch.no_grad():
        theirs = loaded(torch.tensor([IDS])).logits[0].float()
    for key, weight in written.dense.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], weight.to(dtype)), key
    assert_rounds_alike(loaded.model.layers[1].mlp.up_proj, scheme)
    if name in ("fp8", "fp8-block", "fp8-weights"):
        assert deviation(theirs, logits(written.directory)) < 1e-5


def assert_rounds_alike(module: Any, scheme: LinearScheme) -> None:
    args = module.quantization_scheme.input_activations
    assert (args is None) == (scheme.inputs is None)
    if scheme.inputs is None or scheme.inputs.format is ActivationFormat.INT8:
        return
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(2)) * 3
    theirs = forward_quantize(module, x[None], "input", args)[0]
    assert torch.equal(theirs, InputQuantizer(scheme.inputs, scheme.inputs.calibrated(6.0)).round(x))


@pytest.mark.parametrize(("kind", "per_head"), [("int8", False), ("fp8", True)])
def test_kv_scales(kind: str, per_head: bool, tmp_path: Path) -> None:
    """Users' case 16. Names and shapes are those that compressed-tensors gives its own attention modules."""
    keys = (0.03, 0.05) if per_head else (0.03, 0.03)
    written = write_tiny(tmp_path, "fp8-weights", KvScales(kind, keys, (0.04, 0.04)))
    checkpoint = open_checkpoint(written.directory)
    quantization = pytest.importorskip("compressed_tensors.quantization")
    section = quantization.QuantizationConfig.model_validate(checkpoint.config["quantization_config"])
    scheme = section.kv_cache_scheme
    strategy = "attn_head" if per_head else "tensor"
    assert (scheme.num_bits, scheme.type, scheme.strategy) == (8, "int" if kind == "int8" else "float", strategy)
    stored = load_file(written.directory / "model.safetensors")
    for attention in written.model.kv_scales:
        assert torch.equal(stored[f"{attention}.k_scale"].flatten(), torch.tensor(keys if per_head else keys[:1]))
        assert stored[f"{attention}.v_scale"].shape == ((2, 1, 1) if per_head else (1,))
    expected = tuple(torch.tensor(keys).tolist()), tuple(torch.tensor((0.04, 0.04)).tolist())
    for layer in load_model(written.directory).model.layers:
        scales = layer.attention.kv_scales
        assert scales is not None
        assert (scales.format, scales.keys, scales.values) == (kind, *expected)


@pytest.mark.parametrize("bad", ["missing", 0.0, float("nan"), -1.0])
def test_kv_scales_that_are_missing_or_zero_are_an_error(bad: Any, tmp_path: Path) -> None:
    """Users' case 16: an engine that took 1 instead would answer with garbage."""
    written = write_tiny(tmp_path, "fp8-weights", KvScales("fp8", (0.03, 0.03), (0.04, 0.04)))
    file, name = written.directory / "model.safetensors", "model.layers.1.self_attn.v_scale"
    tensors = {key: tensor for key, tensor in load_file(file).items() if key != name}
    save_file(tensors if bad == "missing" else {**tensors, name: torch.tensor([bad])}, file)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.v_scale"):
        load_model(written.directory)


def test_kv_scales_of_some_layers_are_refused(tmp_path: Path) -> None:
    written = write_tiny(tmp_path, "fp8-weights")
    kv = {"model.layers.0.self_attn": KvScales("fp8", (0.03,), (0.04,))}
    model = StoredModel(written.model.tensors, written.model.config, kv_scales=kv)
    with pytest.raises(InvalidField, match=r"kv_scales: got 'model\.layers\.1\.self_attn'"):
        write_compressed_tensors(tmp_path / "other", model)


def test_e5m2_is_not_exported(tmp_path: Path) -> None:
    written = write_tiny(tmp_path, "fp8-weights")
    wide = encode_float(torch.ones(4, 4), FloatScheme(FloatFormat.E5M2))
    model = StoredModel({**written.model.tensors, "model.layers.0.mlp.up_proj.weight": wide}, written.model.config)
    with pytest.raises(InvalidField, match="no checkpoint format can declare E5M2"):
        write_compressed_tensors(tmp_path / "other", model)


@pytest.mark.parametrize(
    ("name", "part", "value", "message"),
    [
        ("fp8-static", "input_scale", torch.tensor([0.0]), r"input_scale: got \[0\.0\]; one positive finite number"),
        ("nvfp4", "weight_global_scale", torch.tensor([0.0]), "holds .*0.0.*, not one positive"),
        ("nvfp4", "weight_scale", torch.ones(160, 6), "weight_scale: is torch.float32"),
        ("fp8", "weight_scale", torch.ones(3, 1), r"weight_scale: is torch.float32 \[3, 1\]"),
        ("fp8", "weight", torch.ones(160, 96), "weight: is torch.float32 .*not a matrix of torch.float8_e4m3fn"),
    ],
)
def test_parts_that_contradict_the_scheme(
    name: str, part: str, value: torch.Tensor, message: str, tmp_path: Path
) -> None:
    written = write_tiny(tmp_path, name)
    file, module = written.directory / "model.safetensors", "model.layers.1.mlp.up_proj"
    save_file({**load_file(file), f"{module}.{part}": value}, file)
    with pytest.raises(CheckpointError, match=message):
        load_model(written.directory)


def test_allocations_stay_compact_and_every_reader_matches(tmp_path: Path) -> None:
    """Mixed precision: q/k/v stand together, a role that is alike in all layers needs no numbers."""
    source = make_tiny("llama", tmp_path / "source")
    tensors: dict[str, Any] = {}
    for key, weight in make_tiny_model("llama").state_dict().items():
        layer = int(key.split(".")[2]) if ".layers." in key else 0
        bits = 8 if "self_attn" in key and layer == 1 else 2 if "down_proj" in key else 4
        is_linear = key.endswith("_proj.weight")
        tensors[key] = quantized_matrix(weight, LinearScheme(IntegerScheme(bits, 32))) if is_linear else weight.clone()
    config = json.loads((source / "config.json").read_text())
    written = write_compressed_tensors(tmp_path / "m", StoredModel(tensors, config))
    checkpoint = open_checkpoint(written.directory)
    section = checkpoint.config["quantization_config"]
    targets = {group["weights"]["num_bits"]: group["targets"] for group in section["config_groups"].values()}
    assert targets == {
        4: [
            r"re:model\.layers\.(0|2)\.(self_attn\.k_proj|self_attn\.o_proj|self_attn\.q_proj|self_attn\.v_proj)$",
            r"re:model\.layers\.\d+\.(mlp\.gate_proj|mlp\.up_proj)$",
        ],
        8: [r"re:model\.layers\.(1)\.(self_attn\.k_proj|self_attn\.o_proj|self_attn\.q_proj|self_attn\.v_proj)$"],
        2: [r"re:model\.layers\.\d+\.(mlp\.down_proj)$"],
    }
    assert not any("vLLM joins" in note for note in written.notes)
    assert verify_with_compressed_tensors(written.directory).max_difference == 0
    for key, tensor in tensors.items():
        assert checkpoint.scheme(key) == (tensor.scheme if isinstance(tensor, PackedTensor) else None)


def test_fused_members_of_different_schemes_are_noted(tmp_path: Path) -> None:
    """Users' case 22."""
    written = write_tiny(tmp_path, "fp8-weights")
    changed = "model.layers.0.self_attn.k_proj.weight"
    tensors = {**written.model.tensors, changed: written.model.tensors[changed].dequantize()}
    noted = write_compressed_tensors(tmp_path / "other", StoredModel(tensors, written.model.config)).notes
    assert any("vLLM joins model.layers.0.self_attn.(q_proj|k_proj|v_proj)" in note for note in noted)
