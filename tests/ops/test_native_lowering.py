"""From a model to instructions: what is joined, what is not, and that no value is overwritten while it is needed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from octavo.models.load import load_model
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Linear, Model
from octavo.ops.native.buffers import assign_slots, lifetimes
from octavo.ops.native.input_form import FLOATS, Grid, InputForm
from octavo.ops.native.instructions import Domain, Instruction, Value
from octavo.ops.native.lowering import lower
from octavo.ops.native.recorder import GatherCall, LogitsCall, RecordingError, RecordingOps, record
from tests.checkpoints import make_tiny
from tests.ops.packed import pack_linears
from tests.ops.strange_models import STRANGE, StrangeModel

FAMILIES = ("llama-tied", "llama-bias", "qwen3", "gemma3")


def form_of(linear: Linear) -> InputForm:
    weight = linear.weight
    return InputForm(Grid.INT8, weight.scheme.group_size) if isinstance(weight, PackedTensor) else FLOATS


def row_bytes(value: Value) -> int:
    return value.features * (4 if value.form.group is None else 2)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny(request.param, tmp_path_factory.mktemp("tiny"))).model


@pytest.fixture(scope="module")
def packed_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    loaded = load_model(make_tiny("llama-tied", tmp_path_factory.mktemp("tiny"))).model
    return pack_linears(loaded, group_size=16)


def kinds(instructions: list[Instruction]) -> Counter[str]:
    return Counter(instruction.kind for instruction in instructions)


def test_a_layer_is_seven_instructions(packed_model: Model) -> None:
    """norm, qkv, attend, o + add, norm, gate/up, down + add: int8 between them, floats only in the residual."""
    instructions = lower(record(packed_model), form_of)
    found = [instruction.kind for instruction in instructions]
    layer = ["norm", "project_qkv", "attend", "linear_add", "norm", "linear_gated", "linear_add"]
    assert found[: 1 + 2 * len(layer)] == ["embed", *layer, *layer]
    outs = {instruction.kind: instruction.writes[0].form.group for instruction in instructions[1:8]}
    assert outs == {"norm": 16, "project_qkv": None, "attend": 16, "linear_gated": 16, "linear_add": None}
    assert instructions[2].name == "model.layers.0.self_attn.q_proj+k_proj+v_proj"


def test_rows_nobody_asks_for_end_with_the_last_attention(packed_model: Model) -> None:
    instructions = lower(record(packed_model), form_of)
    gathers = [index for index, each in enumerate(instructions) if each.kind == "gather"]
    assert len(gathers) == 2  # what attention gave, and the residual
    last_attend = max(index for index, each in enumerate(instructions) if each.kind == "attend")
    assert min(gathers) > last_attend
    written = [value for each in instructions[max(gathers) :] for value in each.writes]
    assert {value.domain for value in written} == {Domain.LOGITS}


def test_elementary_program_has_an_instruction_for_each_call(model: Model) -> None:
    calls = record(model)
    found = kinds(lower(calls, form_of, fused=False))
    attends = found["attend"]
    assert found.total() == len(calls) + attends  # write_kv beside each attend
    assert found["write_kv"] == attends
    assert not found.keys() & {"project_qkv", "linear_gated", "linear_add"}


def test_head_norms_biases_and_sandwich_norms_are_joined(model: Model) -> None:
    found = kinds(lower(record(model), form_of))
    assert found["project_qkv"] == found["linear_gated"] == found["attend"]
    assert not found.keys() & {"rope", "head_norm", "write_kv", "gated"}


def test_mixed_forms_share_a_norm_but_not_an_instruction(tmp_path: Path) -> None:
    """v stays dense: q and k read int8, v reads floats, and attention is fed by elementary instructions."""
    loaded = load_model(make_tiny("llama-tied", tmp_path)).model
    dense = loaded.layers[0].v
    pack_linears(loaded, group_size=16)
    loaded.layers[0].replace_linear(dense)
    instructions = lower(record(loaded), form_of)
    start = [instruction.kind for instruction in instructions[1:9]]
    assert start == ["norm", "quantize", "linear", "linear", "rope", "rope", "write_kv", "attend"]
    assert instructions[3].name.endswith("q_proj+k_proj")
    assert kinds(instructions)["project_qkv"] == 2


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layer", STRANGE)
def test_strange_models_lower(layer: object, fused: bool) -> None:
    instructions = lower(record(StrangeModel(layer)), form_of, fused)
    assert instructions[-1].kind == "logits"
    check_memory(instructions)


@pytest.mark.parametrize("fused", [True, False])
def test_slots(model: Model, packed_model: Model, fused: bool) -> None:
    for each in (model, packed_model):
        instructions = lower(record(each), form_of, fused)
        slots = check_memory(instructions)
        assert len(slots) <= 9  # of hundreds of values


def check_memory(instructions: list[Instruction]) -> list:
    """Every value is written before it is read, lies in one slot that is wide enough, and alone while it lives."""
    written: set[Value] = set()
    for instruction in instructions:
        assert written.issuperset(instruction.reads), f"{instruction} reads what nobody wrote"
        written.update(instruction.writes)
    lives = {life.value: life for life in lifetimes(instructions)}
    slots = assign_slots(instructions, row_bytes)
    assert sorted(map(id, lives)) == sorted(id(value) for slot in slots for value in slot.values)
    for slot in slots:
        assert slot.bytes_per_row == max(row_bytes(value) for value in slot.values)
        assert {value.domain for value in slot.values} == {slot.domain}
        in_time = [lives[value] for value in slot.values]
        assert all(one.last < after.first for one, after in pairwise(in_time))
    return slots


def test_recordings_that_cannot_be_replayed_are_refused() -> None:
    model = StrangeModel(STRANGE[0])
    calls = record(model)
    assert isinstance(calls[-1], LogitsCall)
    assert isinstance(calls[-2], GatherCall)

    class NoLogits(StrangeModel):
        def forward(self, ops: RecordingOps, batch: object) -> object:
            return ops.linear(super().forward(ops, batch), self.linear("more", 96))

    with pytest.raises(RecordingError, match=r"ops\.logits"):
        record(NoLogits(STRANGE[0]))

    def wrong_shape(model: StrangeModel, ops: RecordingOps, x: object, batch: object) -> object:
        return ops.linear(x, model.linear("narrow", 32))

    with pytest.raises(RecordingError, match=r"layers\.0\.narrow: 64 features do not fit 32"):
        record(StrangeModel(wrong_shape))
