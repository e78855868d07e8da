"""Native executors over tiny models, and the reference that computes with activations rounded as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.base import Linear, Model
from octavo.ops.executor_plan import StepLimits
from octavo.ops.native.executor import NativeExecutor
from octavo.ops.native.input_form import activation_group
from octavo.ops.native.packed_model import pack_model
from octavo.ops.native.quantize_activations import quantize_activations
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps

LIMITS = StepLimits(max_num_batched_tokens=704, max_num_seqs=40, max_num_logit_rows=704)


def make_native(model: Model, num_blocks: int = 64, block_size: int = 16, **options: object) -> NativeExecutor:
    """Float32 keys and values and one thread, unless `options` say otherwise."""
    options = {"kv_dtype": "float32", "threads": 1, "limits": LIMITS, "fused": True, **options}
    packed = pack_model(model, fused=options.pop("fused"))
    return NativeExecutor(packed, num_blocks, block_size, options.pop("limits"), **options)


def prompts(lengths: tuple[int, ...], seed: int, vocab_size: int = 288) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


class RoundedActivationOps(ReferenceOps):
    """The reference, but integers and FP4 meet activations rounded to the native executor's int8 groups, unless the
    scheme rounds them itself."""

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        group = activation_group(linear.weight)
        if group is not None and linear.inputs is None:
            x = rounded_activations(x, group)
        return super().linear(x, linear)


def rounded_activations(x: Tensor, group: int) -> Tensor:
    """Each group of features as int8 times its scale; a last group may be shorter."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % group)).contiguous()
    codes, scales = quantize_activations(padded.numpy(), group)
    grouped = torch.from_numpy(codes).float().view(len(x), -1, group) * torch.from_numpy(scales)[..., None]
    return grouped.view(padded.shape)[:, : x.shape[1]]


@torch.inference_mode()
def reference_logits(model: Model, tokens: list[int], ops: ReferenceOps | None = None) -> Tensor:
    """Of all positions, float32 keys and values."""
    return model.forward(ops or ReferenceOps(), whole_prompts([tokens]))
