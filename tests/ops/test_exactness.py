"""The house's first promise: a sequence's logits have the same bits whatever else runs and however it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.core.block_table import BlockTable
from octavo.core.step import Chunk, Step
from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.base import Linear
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.executor import ReferenceExecutor
from octavo.ops.reference.ops import ReferenceOps
from tests.checkpoints import FAMILIES, make_tiny
from tests.ops.paged import Paged

BLOCK_SIZE = 16
NUM_BLOCKS = 80
#: One is longer than a tile of keys (256), one is a single token.
LENGTHS = (300, 1, 33, 90)


def prompts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 288, (length,), generator=generator).tolist() for length in LENGTHS]


def pack(linear: Linear) -> Linear:
    """Round to 4-bit codes in groups of 16, alternately with zero points."""
    rows, columns = linear.weight.shape
    grouped = linear.weight.reshape(rows, columns // 16, 16)
    scale = grouped.abs().amax(-1) / 7
    codes = (grouped / scale[..., None]).round().to(torch.int8).reshape(rows, columns)
    symmetric = linear.name.endswith(("q_proj", "up_proj"))
    zero_point = None if symmetric else torch.ones_like(scale, dtype=torch.int8)
    packed = PackedTensor.from_codes(codes, scale, zero_point, IntegerScheme(4, 16, symmetric))
    return Linear(linear.name, packed, linear.bias)


@pytest.fixture(scope="module", params=[*FAMILIES, "packed", "packed experts", "bfloat16", "odd sizes"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    others = {"packed experts": "mixtral"}
    family = request.param if request.param in FAMILIES else others.get(request.param, "llama-tied")
    fields = {"max_position_embeddings": 512, "num_hidden_layers": 3 if family == "gemma3" else 2}
    if family == "gemma3":
        fields["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    if request.param == "odd sizes":  # stories260k's: nothing divides by the width of a vector register
        fields |= {"hidden_size": 60, "intermediate_size": 172, "head_dim": 10, "vocab_size": 291}
    directory: Path = make_tiny(family, tmp_path_factory.mktemp("tiny"), **fields)
    loaded = load_model(directory, dtype=torch.bfloat16 if request.param == "bfloat16" else torch.float32).model
    if request.param.startswith("packed"):
        for layer in loaded.layers:
            for linear in list(layer.linears()):
                layer.replace_linear(pack(linear))
    return loaded


def paged_reference(model: DecoderModel, seed: int) -> Paged:
    return Paged(ReferenceExecutor(model, NUM_BLOCKS, BLOCK_SIZE), seed)


def alone(model: DecoderModel, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return model.forward(ReferenceOps(), whole_prompts([tokens]))


def test_alone_batched_chunked_and_decoded(model: DecoderModel) -> None:
    sequences = prompts(1)
    expected = torch.cat([alone(model, tokens) for tokens in sequences])
    with torch.inference_mode():
        together = model.forward(ReferenceOps(), whole_prompts(sequences))
    assert torch.equal(together, expected)
    for largest in (300, 70, 9):
        logits = paged_reference(model, largest).run(sequences, largest)
        assert torch.equal(logits, expected), f"chunks of up to {largest}"
    short = [tokens[:40] for tokens in sequences]
    expected = torch.cat([alone(model, tokens) for tokens in short])
    assert torch.equal(paged_reference(model, 3).run(short, 1), expected), "token by token"


def test_cached_prefix_and_copied_block(model: DecoderModel) -> None:
    """A prefix computed by another sequence, in its blocks; the partial last block is copied before it is written."""
    tokens = prompts(2)[3]
    paged = paged_reference(model, 4)
    first_table = paged.table(len(tokens))
    paged.run([tokens[:40]], 300, table=first_table)
    copied = paged.free.pop()
    own_table = BlockTable([*first_table.blocks[:2], copied, *paged.table(len(tokens) - 48)])
    chunk = Chunk(1, tokens[40:50], 40, own_table, list(range(10)))
    step = Step([chunk], block_copies=[(first_table[2], copied)])
    logits = torch.cat([paged.executor.execute(step), paged.run([tokens], 20, start=50, table=own_table)])
    assert torch.equal(logits, alone(model, tokens)[40:])


def test_requested_rows_only(model: DecoderModel) -> None:
    tokens = prompts(3)[2]
    paged = paged_reference(model, 5)
    logits = paged.executor.execute(Step([Chunk(0, tokens, 0, paged.table(len(tokens)), [4, 32])]))
    assert torch.equal(logits, alone(model, tokens)[[4, 32]])
