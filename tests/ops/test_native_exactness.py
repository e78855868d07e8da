"""The house's first promise on the native executor: bit for bit, whatever else runs and however it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.core.block_table import BlockTable
from octavo.core.errors import CapacityError
from octavo.core.step import Chunk, Step
from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.ops.executor_plan import ExecutorUnavailable
from octavo.ops.native.kernel_units import kernel_units
from tests.checkpoints import make_tiny
from tests.ops.native_executors import make_native, prompts
from tests.ops.packed import pack_linears
from tests.ops.paged import Paged
from tests.ops.strange_models import STRANGE, StrangeModel

#: One is longer than a part of keys (512), one is a single token.
LENGTHS = (560, 1, 33, 90)
SIZES = {"max_position_embeddings": 1024, "num_hidden_layers": 2}


def make_model(name: str, directory: Path) -> DecoderModel:
    match name:
        case "dense, windows":
            layers = {
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "full_attention"] * 1 + ["sliding_attention"],
            }
            return load_model(make_tiny("gemma3", directory, **{**SIZES, **layers})).model
        case "4 bits":
            return pack_linears(load_model(make_tiny("llama-tied", directory, **SIZES)).model, 4, 16)
        case "4 bits, long groups":
            sizes = {**SIZES, "hidden_size": 128, "intermediate_size": 256, "head_dim": 64}
            return pack_linears(load_model(make_tiny("qwen3", directory, **sizes)).model, 4, 64)
        case "3 bits, biases":
            return pack_linears(load_model(make_tiny("llama-bias", directory, **SIZES)).model, 3, 32, symmetric=False)
        case "odd sizes":
            sizes = {**SIZES, "hidden_size": 60, "intermediate_size": 172, "head_dim": 10, "vocab_size": 291}
            return load_model(make_tiny("llama-tied", directory, **sizes), dtype=torch.bfloat16).model
    raise AssertionError(name)


@pytest.fixture(
    scope="module", params=["dense, windows", "4 bits", "4 bits, long groups", "3 bits, biases", "odd sizes"]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return make_model(request.param, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(model: DecoderModel) -> list[Tensor]:
    """Each prompt alone, in one chunk, by an executor that has computed nothing else."""
    return [Paged(make_native(model)).alone(tokens) for tokens in prompts(LENGTHS, seed=1)]


def test_batched_chunked_and_decoded(model: DecoderModel, expected: list[Tensor]) -> None:
    sequences = prompts(LENGTHS, seed=1)
    paged = Paged(make_native(model), seed=2)
    for largest in (560, 70, 9):
        assert torch.equal(paged.run(sequences, largest), torch.cat(expected)), f"chunks of up to {largest}"
    short = [tokens[:40] for tokens in sequences]
    assert torch.equal(paged.run(short, 1), torch.cat([each[:40] for each in expected])), "token by token"


def test_every_boundary(model: DecoderModel) -> None:
    (tokens,) = prompts((81,), seed=3)
    paged = Paged(make_native(model))
    alone = paged.alone(tokens)
    for boundary in range(1, len(tokens)):
        assert torch.equal(paged.run_cut(tokens, boundary), alone), f"cut at {boundary}"


def test_batches_of_2_to_33_decodes(model: DecoderModel) -> None:
    """Every number of rows, few and many: the same token after the same past, among ever more others."""
    sequences = prompts((20,) * 33, seed=4)
    paged = Paged(make_native(model, num_blocks=80))
    tables = [paged.table(24) for _ in sequences]
    for index, tokens in enumerate(sequences):
        paged.executor.execute(Step([Chunk(index, tokens[:19], 0, tables[index], [])]))
    last = [Chunk(i, [tokens[19]], 19, tables[i], [0]) for i, tokens in enumerate(sequences)]
    alone = torch.cat([paged.executor.execute(Step([chunk])).clone() for chunk in last])
    for size in range(2, 34):
        assert torch.equal(paged.executor.execute(Step(last[:size])), alone[:size]), f"{size} rows"


@pytest.mark.parametrize("threads", [2, 4])
def test_threads(model: DecoderModel, expected: list[Tensor], threads: int) -> None:
    sequences = prompts(LENGTHS, seed=1)
    paged = Paged(make_native(model, threads=threads), seed=threads)
    assert torch.equal(paged.run(sequences, 560), torch.cat(expected))
    assert torch.equal(paged.run(sequences, 130), torch.cat(expected))


def test_elementary_program_gives_the_same_bits(model: DecoderModel, expected: list[Tensor]) -> None:
    paged = Paged(make_native(model, fused=False))
    assert torch.equal(paged.run(prompts(LENGTHS, seed=1), 200), torch.cat(expected))


def test_instruction_sets(model: DecoderModel) -> None:
    sequences = prompts((70, 1, 9), seed=9)
    units = [unit.name for unit in kernel_units() if unit.is_available]
    logits = [Paged(make_native(model, isa=unit)).run(sequences, 40) for unit in units]
    assert all(torch.equal(each, logits[0]) for each in logits[1:]), units


def test_block_size_changes_nothing(model: DecoderModel, expected: list[Tensor]) -> None:
    for block_size in (32, 64, 48):
        paged = Paged(make_native(model, num_blocks=32, block_size=block_size), seed=block_size)
        assert torch.equal(paged.run(prompts(LENGTHS, seed=1), 90), torch.cat(expected)), f"{block_size} positions"


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_cached_prefix_and_copied_block(model: DecoderModel, kv_dtype: str) -> None:
    """A prefix computed by another sequence, in its blocks; the partial last block is copied before it is written."""
    (tokens,) = prompts((90,), seed=2)
    paged = Paged(make_native(model, kv_dtype=kv_dtype), seed=4)
    alone = paged.alone(tokens)
    first_table = paged.table(len(tokens))
    paged.run([tokens[:40]], 90, table=first_table)
    copied = paged.free.pop()
    own_table = BlockTable([*first_table.blocks[:2], copied, *paged.table(len(tokens) - 48)])
    chunk = Chunk(1000, tokens[40:50], 40, own_table, list(range(10)))
    first = paged.executor.execute(Step([chunk], block_copies=[(first_table[2], copied)])).clone()
    logits = torch.cat([first, paged.run([tokens], 20, start=50, table=own_table)])
    assert torch.equal(logits, alone[40:])
    assert torch.equal(paged.run([tokens], 3), alone)


def test_rows_that_are_asked_for(model: DecoderModel, expected: list[Tensor]) -> None:
    tokens = prompts(LENGTHS, seed=1)[3]
    paged = Paged(make_native(model), seed=5)
    logits = paged.executor.execute(Step([Chunk(0, tokens, 0, paged.table(len(tokens)), [4, 32, 89])]))
    assert torch.equal(logits, expected[3][[4, 32, 89]])
    nothing = paged.executor.execute(Step([Chunk(1, tokens, 0, paged.table(len(tokens)), [])]))
    assert nothing.shape == (0, model.vocab_size)


def test_a_table_that_changes_under_its_sequence(model: DecoderModel) -> None:
    """Preempted and computed again elsewhere; an id that ends and comes back; another block in the middle."""
    (tokens,) = prompts((70,), seed=6)
    paged = Paged(make_native(model), seed=6)
    alone = paged.alone(tokens)

    def compute(first: int, end: int, table: BlockTable, **fields: object) -> Tensor:
        chunk = Chunk(7, tokens[first:end], first, table, list(range(end - first)))
        return paged.executor.execute(Step([chunk], **fields)).clone()

    compute(0, 30, paged.table(48))
    moved = paged.table(96)
    assert torch.equal(compute(0, 50, moved), alone[:50])
    target = paged.free.pop()
    source, index = moved[1], 1
    moved.replace(index, target)
    assert torch.equal(compute(50, 60, moved, block_copies=[(source, target)]), alone[50:60])
    again = BlockTable(paged.table(96).blocks)
    assert torch.equal(compute(0, 70, again, ended_sequences=[7]), alone)


@pytest.mark.parametrize("layer", STRANGE)
def test_strange_models(layer: object) -> None:
    model = StrangeModel(layer)
    tokens = [token % model.vocab_size for token in prompts((90,), seed=8)[0]]
    fused, elementary = (Paged(make_native(model, fused=fused)) for fused in (True, False))
    alone = fused.alone(tokens)
    assert torch.equal(elementary.alone(tokens), alone)
    assert torch.equal(fused.run([tokens], 7), alone)


def test_what_it_cannot_do_is_refused_by_name(model: DecoderModel) -> None:
    with pytest.raises(ExecutorUnavailable, match="block_size 24"):
        make_native(model, block_size=24)
    executor = make_native(model)
    tokens = [3] * (executor.limits.max_num_batched_tokens + 1)
    with pytest.raises(CapacityError, match=r"705 tokens.*704"):
        executor.execute(Step([Chunk(0, tokens, 0, BlockTable(range(45)), [])]))
