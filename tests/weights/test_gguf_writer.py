"""GGUF files that Octavo writes: read by the gguf package, by transformers, by Octavo itself and by llama.cpp."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from octavo.core.errors import CheckpointError, InvalidField, UnsupportedModel
from octavo.models.gguf_export import export_gguf
from octavo.models.load import load_model, open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.models.spec import ModelSpec
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from octavo.weights.gguf_file import GgufFile
from octavo.weights.gguf_file_types import FILE_TYPES
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import FAMILIES, make_tiny
from tests.text.conftest import STORIES
from tests.weights.gguf_models import packed, stored_model

LLAMA_CPP = Path.home() / ".cache" / "octavo" / "peers" / "llama.cpp" / "bin" / "python"
TOKENS = [5, 100, 7, 250, 31, 9, 12, 66]
#: What a family's tiny model has that llama.cpp's architecture does not.
CHANGES: dict[str, dict[str, Any]] = {
    "qwen3-moe": {"mlp_only_layers": [], "norm_topk_prob": True},
    "gemma3": {"query_pre_attn_scalar": 32},
}
#: Root mean square error over that of normal weights.
MOST_ERROR = {"F16": 0.0005, "BF16": 0.003, "Q8_0": 0.006, "Q6_K": 0.02, "Q5_0": 0.043, "Q5_1": 0.038, "Q5_K": 0.037,
              "Q4_0": 0.087, "Q4_1": 0.08, "Q4_K": 0.075, "Q3_K": 0.16, "Q2_K": 0.31}  # fmt: skip


def dense(tensor: torch.Tensor | QuantizedTensor) -> torch.Tensor:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.float()


def logits(source: Path) -> torch.Tensor:
    with torch.inference_mode():
        return load_model(source).model.forward(ReferenceOps(), whole_prompts([TOKENS]))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_back(family: str, tmp_path: Path) -> None:
    """Float32: the numbers are the source's, whatever llama.cpp's names and order of rows are; so are the logits."""
    directory = make_tiny(family, tmp_path / "model", **CHANGES.get(family, {}))
    spec, model = stored_model(directory)
    written = export_gguf(tmp_path / "m.gguf", spec, model, "F32")
    back = open_model_checkpoint(written.directory)
    assert read_spec(back.config) == spec
    assert back.names() == sorted(model.tensors)
    for name in back.names():
        tolerance = 1e-6 if spec.norm_offset and name.endswith("norm.weight") else 0.0
        assert torch.allclose(dense(back.get(name)), dense(model.tensors[name]), rtol=0, atol=tolerance), name
    assert torch.allclose(logits(written.directory), logits(directory), atol=1e-4)
    assert model.tokenizer is not None
    for text in ("Hello the world, seven eight", "x<|im_end|>\n12", "Æ東京"):
        assert back.tokenizer().encode(text) == model.tokenizer.encode(text)
    assert back.tokenizer().chat_template is not None
    assert written.total_bytes == written.directory.stat().st_size
    assert sum(written.tensor_bytes.values()) == 4 * written.num_weights


def test_the_package_reads_what_is_written(tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny("llama-bias", tmp_path / "model"))
    file = export_gguf(tmp_path / "m.gguf", spec, model, "F16", name="Größe").directory
    reader = gguf.GGUFReader(file)
    metadata = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert metadata == GgufFile(file).metadata
    assert metadata["general.name"] == "Größe"
    assert metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_F16
    assert reader.fields["tokenizer.ggml.token_type"].types[-1] == gguf.GGUFValueType.INT32
    assert reader.fields["llama.block_count"].types == [gguf.GGUFValueType.UINT32]
    ours = GgufFile(file)
    assert {tensor.name for tensor in reader.tensors} == set(ours.names())
    for tensor in reader.tensors:
        assert torch.equal(torch.tensor(np.array(tensor.data)).float(), ours.get(tensor.name).float())
        assert tensor.tensor_type == gguf.GGMLQuantizationType["F16" if len(tensor.shape) == 2 else "F32"]
    # q's first head, paired: its second row is the first of the head's other half
    query = model.tensors["model.layers.0.self_attn.q_proj.weight"]
    stored = next(tensor.data for tensor in reader.tensors if tensor.name == "blk.0.attn_q.weight")
    assert isinstance(query, torch.Tensor)
    assert torch.equal(torch.tensor(np.array(stored[1])), query[16].half())


def test_transformers_reads_the_stories(tmp_path: Path) -> None:
    if not STORIES.is_dir():
        pytest.skip("needs ../shared/data/models/stories260k")
    import transformers

    spec, model = stored_model(STORIES)
    file = export_gguf(tmp_path / "stories.gguf", spec, model).directory
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([TOKENS])).logits[0]
    assert torch.allclose(logits(file), expected, atol=2e-4)
    assert torch.equal(logits(file), logits(STORIES))
    assert GgufFile(file).metadata["general.file_type"] == 0
    assert model.tokenizer is not None
    for text in ("Once upon a time, there was a girl. ", "a  b\n\nc", "東 ü <s>"):
        assert GgufFile(file).tokenizer().encode(text) == model.tokenizer.encode(text)


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, StoredModel]:
    """Nine layers whose rows have 256 weights, 160 in the MLP's output."""
    directory = tmp_path_factory.mktemp("wide")
    return stored_model(make_tiny("llama", directory, hidden_size=256, num_attention_heads=8, num_hidden_layers=9))


@pytest.mark.parametrize("file_type", ["BF16", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M"])
def test_types_and_fallbacks_are_llama_cpps(
    file_type: str, wide_model: tuple[ModelSpec, StoredModel], tmp_path: Path
) -> None:
    """Rows of 256 take every type, rows of 160 only those of 32 weights, and the notes say where that mattered."""
    spec, model = wide_model
    written = export_gguf(tmp_path / "m.gguf", spec, model, file_type)
    file = GgufFile(written.directory)
    base = FILE_TYPES[file_type].base
    assert file.tensor_type("blk.4.attn_q.weight") == base
    assert file.tensor_type("output.weight") == FILE_TYPES[file_type].head
    assert file.tensor_type("blk.0.attn_norm.weight") == "F32"
    down = file.tensor_type("blk.4.ffn_down.weight")
    assert down == {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}.get(base, base)
    assert any("rows of 160" in note and "ffn_down" in note for note in written.notes) == (down != base)
    if file_type == "Q4_K_M":  # first eighth, last eighth, every third between
        values = [file.tensor_type(f"blk.{layer}.attn_v.weight") for layer in range(9)]
        assert [layer for layer, name in enumerate(values) if name == "Q6_K"] == [0, 3, 6, 7, 8]
        assert "Q8_0 instead of Q6_K, rows of 160 are not whole blocks: blk.0+3+6-8.ffn_down.weight" in written.notes
    back = open_model_checkpoint(written.directory)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
        exact = model.tensors[f"model.layers.4.{name}.weight"]
        assert isinstance(exact, torch.Tensor)
        error = (dense(back.get(f"model.layers.4.{name}.weight")) - exact).norm() / exact.norm()
        assert error < MOST_ERROR[back.tensor_type(f"model.layers.4.{name}.weight")]


SCHEMES = {
    "Q4_0": IntegerScheme(4, 32), "Q8_0": IntegerScheme(8, None), "Q5_0": IntegerScheme(4, 32, symmetric=False),
}  # fmt: skip


@pytest.mark.parametrize("type_name", SCHEMES)
def test_codes_are_copied_where_the_grid_has_an_equal(type_name: str, tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny("llama-tied", tmp_path / "model"))
    tensors = dict(model.tensors)
    for name, tensor in model.tensors.items():
        if "_proj" in name and isinstance(tensor, torch.Tensor):
            tensors[name] = packed(tensor, SCHEMES[type_name])
    tensors["model.embed_tokens.weight"] = packed(dense(tensors["model.embed_tokens.weight"]), IntegerScheme(8))
    model = type(model)(tensors, model.config, model.tokenizer)
    for asked in (None, "Q8_0"):
        written = export_gguf(tmp_path / "m.gguf", spec, model, asked)
        back = open_model_checkpoint(written.directory)
        assert written.notes == ()
        expected = Counter({asked or type_name: 21})
        names = [name for name in back.names() if "_proj" in name]
        assert Counter(back.tensor_type(name) for name in names) == expected
        assert back.tensor_type("model.embed_tokens.weight") == "Q8_0"
        for name, tensor in tensors.items():
            assert torch.equal(dense(back.get(name)), dense(tensor)), name


def test_groups_of_64_and_int4_minima(tmp_path: Path) -> None:
    """A scale stands for two blocks; minima that are float16 numbers make Q4_1, others Q5_0."""
    from octavo.weights.gguf_carry import carriers, carry

    matrix = torch.randn(4, 128, generator=torch.Generator().manual_seed(2))
    wide = packed(matrix, IntegerScheme(4, 64))
    assert carriers(wide) == ("Q4_0", "Q5_0", "Q8_0")
    uneven = packed(matrix, IntegerScheme(4, 64, symmetric=False))
    even = type(uneven)(
        uneven.words, torch.full_like(uneven.scale, 0.25), uneven.zero_point, uneven.scheme, uneven.shape
    )
    assert carriers(even)[0] == "Q4_1"
    assert carriers(uneven)[0] == "Q5_0"
    for tensor in (wide, uneven, even):
        for name in carriers(tensor):
            data = carry(tensor, name).numpy()
            values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
            assert np.array_equal(values, tensor.dequantize().numpy()), name
    assert carriers(packed(matrix, IntegerScheme(4, 16))) == ()
    assert carriers(packed(matrix, IntegerScheme(4, 32), torch.float32)) == ()
    assert carriers(packed(matrix, IntegerScheme(8, 32, symmetric=False))) == ()


def test_ternary_and_mxfp4_have_types_of_their_own() -> None:
    from octavo.numerics.float_scheme import MXFP4
    from octavo.numerics.float_tensor import FloatTensor
    from octavo.numerics.packed_tensor import PackedTensor
    from octavo.weights.gguf_carry import carriers, carry

    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(-1, 2, (4, 512), generator=generator).to(torch.int8)
    scheme = IntegerScheme(2, None, True, ternary=True)
    ternary = PackedTensor.from_codes(codes, torch.full((4, 1), 0.75, dtype=torch.float16), None, scheme)
    nibbles = torch.randint(0, 256, (4, 256), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(110, 130, (4, 16), dtype=torch.uint8, generator=generator)
    mxfp4 = FloatTensor(nibbles, exponents, None, MXFP4, (4, 512))
    for tensor, name in ((ternary, "TQ2_0"), (mxfp4, "MXFP4")):
        assert carriers(tensor)[0] == name
        values = gguf.quants.dequantize(carry(tensor, name).numpy(), gguf.GGMLQuantizationType[name])
        assert np.array_equal(values, tensor.dequantize().numpy())


def test_a_grid_without_an_equal_is_refused_or_said(tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny("llama-tied", tmp_path / "model"))
    name = "model.layers.1.mlp.up_proj.weight"
    tensor = model.tensors[name]
    assert isinstance(tensor, torch.Tensor)
    odd = type(model)({**model.tensors, name: packed(tensor, IntegerScheme(4, 16))}, model.config, model.tokenizer)
    with pytest.raises(InvalidField, match=r"layers\.1\.mlp\.up_proj\.weight is int4 symmetric group 16.*Q8_0"):
        export_gguf(tmp_path / "m.gguf", spec, odd)
    assert not list(tmp_path.glob("*m.gguf*"))
    written = export_gguf(tmp_path / "m.gguf", spec, odd, "Q8_0")
    assert written.notes == ("rounded again, int4 symmetric group 16 to Q8_0: blk.1.ffn_up.weight",)


def test_what_gguf_has_no_place_for(tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny("llama-tied", tmp_path / "model"))
    file = tmp_path / "m.gguf"
    with pytest.raises(InvalidField, match="GGUF file types are F32, F16"):
        export_gguf(file, spec, model, "Q9_X")
    with pytest.raises(InvalidField, match=r"called <name>\.gguf"):
        export_gguf(tmp_path / "m.bin", spec, model)
    with pytest.raises(InvalidField, match="carries its tokenizer"):
        export_gguf(file, spec, type(model)(model.tensors, model.config))
    extra = {**model.tensors, "model.layers.0.self_attn.gate.weight": torch.ones(2, 2)}
    with pytest.raises(CheckpointError, match=r"self_attn\.gate\.weight has no place"):
        export_gguf(file, spec, type(model)(extra, model.config, model.tokenizer))
    nan = {**model.tensors, "model.layers.0.mlp.up_proj.weight": torch.full((160, 96), torch.nan)}
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj\.weight.*inf or nan"):
        export_gguf(file, spec, type(model)(nan, model.config, model.tokenizer), "Q4_0")
    scales = {"model.layers.0.self_attn": KvScales("fp8", (1.0, 1.0), (1.0, 1.0))}
    scaled = type(model)(model.tensors, model.config, model.tokenizer, kv_scales=scales)
    with pytest.raises(InvalidField, match="no place for this model's KV scales"):
        export_gguf(file, spec, scaled)
    file.write_bytes(b"somebody's notes")
    with pytest.raises(InvalidField, match="Octavo did not write"):
        export_gguf(file, spec, model)
    assert file.read_bytes() == b"somebody's notes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "model"]


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "kind dynamic"),
        ("gemma3", {}, "queries are scaled"),
        ("qwen3-moe", {"norm_topk_prob": True}, "with and without experts"),
        ("qwen3-moe", {"mlp_only_layers": []}, "norm_topk_prob"),
        ("qwen3", {"attention_bias": True}, "no such biases"),
    ],
)
def test_computations_that_gguf_cannot_say(family: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny(family, tmp_path / "model", **changes))
    with pytest.raises(UnsupportedModel, match=words):
        export_gguf(tmp_path / "m.gguf", spec, model, "F16")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
)  # fmt: skip
def test_rotations_read_back(rope: dict[str, Any], tmp_path: Path) -> None:
    directory = make_tiny("llama-tied", tmp_path / "model", rope_parameters={"rope_theta": 500_000.0, **rope})
    spec, model = stored_model(directory)
    file = export_gguf(tmp_path / "m.gguf", spec, model, "F32").directory
    assert read_spec(open_model_checkpoint(file).config) == spec


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny("qwen2", tmp_path / "model"))
    files = [export_gguf(tmp_path / place / "m.gguf", spec, model, "Q4_0").directory for place in ("a", "b", "a")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_importance_is_used_and_bad_importance_is_said(tmp_path: Path) -> None:
    spec, model = stored_model(make_tiny("llama-tied", tmp_path / "model"))
    importance = {"model.layers.0.mlp.up_proj": torch.rand(96) ** 4, "model.layers.1.mlp.up_proj": torch.zeros(96)}
    plain = export_gguf(tmp_path / "plain.gguf", spec, model, "Q4_0")
    weighted = export_gguf(tmp_path / "weighted.gguf", spec, model, "Q4_0", importance=importance)
    first, second = (open_model_checkpoint(written.directory) for written in (plain, weighted))
    changed = [name for name in first.names() if not torch.equal(dense(first.get(name)), dense(second.get(name)))]
    assert changed == ["model.layers.0.mlp.up_proj.weight"]
    assert any("blk.1.ffn_up.weight" in note and "weigh alike" in note for note in weighted.notes)


_PROGRAM = """
import json, sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], verbose=False, logits_all=True, n_ctx=128, n_threads=1)
tokens = model.tokenize(sys.argv[2].encode(), add_bos=True, special=True)
model.eval(tokens)
logits = model.scores[: len(tokens)].tolist()
text = model.create_completion(tokens, max_tokens=20, temperature=0)["choices"][0]["text"]
print(json.dumps({"tokens": tokens, "logits": logits, "text": text}))
"""


def ask_llama_cpp(file: Path, prompt: str) -> dict[str, Any]:
    """Tokens of the prompt, logits at each, greedy text after it."""
    if not LLAMA_CPP.exists():
        pytest.skip(f"needs llama-cpp-python at {LLAMA_CPP}: python -m benchmarks.peers setup")
    command = [str(LLAMA_CPP), "-c", _PROGRAM, str(file), prompt]
    done = subprocess.run(command, check=False, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def logits_of(file: Path, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return load_model(file).model.forward(ReferenceOps(), whole_prompts([tokens]))


@pytest.mark.slow
@pytest.mark.parametrize(("file_type", "tolerance"), [(None, 0.02), ("F16", 0.03), ("Q8_0", 0.5), ("Q4_K_M", 0.5)])
def test_llama_cpp_computes_the_same(file_type: str | None, tolerance: float, tmp_path: Path) -> None:
    """Logits of the same file; llama.cpp rounds activations to 8 bits beside quantized weights."""
    if not STORIES.is_dir():
        pytest.skip("needs ../shared/data/models/stories260k")
    spec, model = stored_model(STORIES)
    file = export_gguf(tmp_path / "m.gguf", spec, model, file_type).directory
    theirs = ask_llama_cpp(file, "Once upon a time, there")
    assert model.tokenizer is not None
    assert theirs["tokens"] == model.tokenizer.encode("Once upon a time, there")
    ours = logits_of(file, theirs["tokens"])
    assert (ours - torch.tensor(theirs["logits"])).abs().max() < tolerance
    assert theirs["text"].startswith(" was a little")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_computes_every_family(family: str, tmp_path: Path) -> None:
    """Prompts within the window of those that have one: llama.cpp knows Gemma's, not Mistral's."""
    directory = make_tiny(family, tmp_path / "model", **CHANGES.get(family, {}))
    spec, model = stored_model(directory)
    file = export_gguf(tmp_path / "m.gguf", spec, model, "F32").directory
    theirs = ask_llama_cpp(file, "hello the world, seven")
    assert model.tokenizer is not None
    assert theirs["tokens"] == model.tokenizer.encode("hello the world, seven")
    ours, others = logits_of(directory, theirs["tokens"]), torch.tensor(theirs["logits"])
    assert (ours - others).abs().max() < 0.03 * ours.std()  # its cache is float16


def test_the_second_opinion_sees_what_is_exact_and_what_is_not(tmp_path: Path) -> None:
    from octavo.models.gguf_verification import verify_gguf

    spec, model = stored_model(make_tiny("llama-tied", tmp_path / "model"))
    file = export_gguf(tmp_path / "m.gguf", spec, model, "Q8_0").directory
    opinion = verify_gguf(file, spec, model)
    assert opinion.verified
    assert opinion.max_difference is not None
    assert 0 < opinion.max_difference < 0.006
    assert "29 tensors, 7 of them exactly" in opinion.verdict
    assert verify_gguf(file, spec, model, exact=True).verified is False
    name = "model.layers.2.self_attn.q_proj.weight"
    query = model.tensors[name]
    assert isinstance(query, torch.Tensor)
    other = type(model)({**model.tensors, name: query.roll(1, dims=0)}, model.config, model.tokenizer)
    opinion = verify_gguf(file, spec, other)
    assert opinion.verified is False
    assert opinion.worst_module == name
