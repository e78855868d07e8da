"""Sampling over rows of logits: one object for each sequence, one call for all rows of a step.

The order is vLLM's: logit bias, forbidden ends, penalties, temperature, top-k / min-p / top-p, draw. Greedy takes the
highest logit; of tied ones the lowest token id, which is also what every filter keeps. A draw is a function of
(seed, sequence index, number of output tokens) and the row alone. Nothing sorts the vocabulary, and every kernel unit
gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import InvalidField
from octavo.core.sampling_params import SamplingParams
from octavo.ops.native import _kernels
from octavo.ops.native._kernels import SequenceSampler

#: What `sample_rows` answers for a row that holds NaN or whose highest logit is infinite.
NON_FINITE = -1
#: (token id, log-probability, rank from 1)
TokenLogprob = tuple[int, float, int]

Logits = NDArray[np.float32]


def sequence_sampler(
    params: SamplingParams,
    seed: int,
    sequence_index: int,
    prompt_token_ids: list[int],
    banned_ids: list[int] | None = None,
) -> SequenceSampler:
    """What is known of one sequence; `append(token)` each token it grows by.

    `banned_ids` cannot be chosen before `params.min_tokens` tokens. Only a repetition penalty looks at the prompt.
    """
    return SequenceSampler(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=seed & (2**64 - 1),
        sequence_index=sequence_index,
        prompt=prompt_token_ids if params.repetition_penalty != 1.0 else [],
        bias=list((params.logit_bias or {}).items()),
        banned=banned_ids or [],
        min_tokens=params.min_tokens,
    )


def sample_rows(logits: Logits, rows: list[int], samplers: list[SequenceSampler], unit: str | None = None) -> list[int]:
    """A token id for each of `rows` of `logits` float32 `[rows, vocabulary]`, `NON_FINITE` where there is none; a row
    may be named more than once. `unit` None is the best that runs here.

    Raises `InvalidField` for another dtype or shape.
    """
    _check(logits)
    return _kernels.sample_rows(logits, rows, samplers, unit or "")


def row_logprobs(
    logits: Logits, rows: list[int], chosen: list[int], counts: list[int], unit: str | None = None
) -> list[list[TokenLogprob]]:
    """For each of `rows`: the chosen token, then the `counts[i]` most likely ones, best first, of raw logits;
    nothing for a row that is not finite."""
    _check(logits)
    return _kernels.row_logprobs(logits, rows, chosen, counts, unit or "")


def uniform(seed: int, sequence_index: int, position: int) -> float:
    """The number in [0, 1) with 53 random bits that is drawn for this key."""
    return _kernels.uniform(seed & (2**64 - 1), sequence_index, position)


def sampling_units() -> list[str]:
    """Kernel units of sampling that run here, slowest first."""
    return _kernels.sampling_units()


def _check(logits: Logits) -> None:
    if logits.ndim != 2 or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        given = f"{logits.dtype} {list(logits.shape)}{'' if logits.flags.c_contiguous else ', strided'}"
        raise InvalidField("logits", given, "logits are float32 [rows, vocabulary], row after row in memory")
