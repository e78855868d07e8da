"""The sampling kernels: every unit the same, the definition of a draw, log-probabilities, refusals."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvalidField
from octavo.core.sampling_params import SamplingParams
from octavo.ops.native.sampling import row_logprobs, sample_rows, sampling_units, sequence_sampler, uniform

KINDS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 4.0, "top_p": 0.98},
    {"top_k": 50, "top_p": 0.9},
    {"min_p": 0.02},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {3: 4.0}},
]


def splitmix_uniform(seed: int, index: int, position: int) -> float:
    """SplitMix64 by its definition, over unbounded whole numbers."""
    mask, gamma = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(value: int) -> int:
        value = (value + gamma) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    state = mix(mix(mix(seed & mask) ^ (index * gamma & mask)) ^ (position * gamma & mask))
    return (state >> 11) * 2.0**-53


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127), st.integers(0, 10**6))
def test_uniform_is_splitmix(seed: int, index: int, position: int) -> None:
    assert uniform(seed, index, position) == splitmix_uniform(seed, index, position)


def test_draws_are_keyed_by_seed_index_and_position() -> None:
    draws = [uniform(seed, index, position) for seed in range(-8, 8) for index in range(8) for position in range(32)]
    assert len(set(draws)) == len(draws)
    assert all(0.0 <= draw < 1.0 for draw in draws)
    histogram = Counter(int(draw * 16) for draw in draws)
    assert all(abs(count - 256) < 5 * 16 for count in histogram.values())


@pytest.mark.parametrize("vocabulary", [1, 15, 16, 64, 65, 1000, 49_152])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_every_unit_chooses_the_same(vocabulary: int, kind: int) -> None:
    logits = (np.random.default_rng(vocabulary).standard_normal((12, vocabulary)) * 4).astype(np.float32)
    params = dict(KINDS[kind])
    if "logit_bias" in params:
        params["logit_bias"] = {min(3, vocabulary - 1): 4.0}
    rows, prompt = list(range(12)), [0, vocabulary - 1]
    samplers = [sequence_sampler(SamplingParams(**params), seed, 0, prompt) for seed in rows]
    first, *others = sampling_units()
    expected = sample_rows(logits, rows, samplers, first)
    weights = [sampler.candidates(logits[row], first) for row, sampler in zip(rows[:3], samplers, strict=False)]
    logprobs = row_logprobs(logits, rows, expected, [min(5, vocabulary)] * 12, first)
    for unit in others:
        assert sample_rows(logits, rows, samplers, unit) == expected
        assert [each.candidates(logits[row], unit) for row, each in zip(rows[:3], samplers, strict=False)] == weights
        assert row_logprobs(logits, rows, expected, [min(5, vocabulary)] * 12, unit) == logprobs


@pytest.mark.parametrize("params", KINDS[1:6])
def test_a_draw_is_the_inverse_of_the_cumulative_weights(params: dict) -> None:
    logits = (np.random.default_rng(4).standard_normal((1, 5000)) * 2).astype(np.float32)
    for seed in range(40):
        sampler = sequence_sampler(SamplingParams(**params), seed, 3, [])
        for token in range(seed % 3):
            sampler.append(token)
        tokens, weights = sampler.candidates(logits[0])
        cumulative = np.cumsum(np.array(weights, dtype=np.float64))
        place = np.searchsorted(cumulative, uniform(seed, 3, seed % 3) * cumulative[-1], side="right")
        assert sample_rows(logits, [0], [sampler]) == [tokens[place]]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 2.0, 30.0]), st.integers(0, 20))
def test_logprobs_against_torch(seed: int, scale: float, count: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal((3, 700)) * scale).astype(np.float32)
    logits[2, :300] = np.round(logits[2, :300])  # ties
    chosen = [int(logits[0].argmax()), 5, 13]
    exact = torch.log_softmax(torch.from_numpy(logits).double(), -1)
    for row, (first, *best) in enumerate(row_logprobs(logits, [0, 1, 2], chosen, [count] * 3)):
        order = sorted(range(700), key=lambda token: (-float(logits[row, token]), token))
        assert [(token, rank) for token, _, rank in best] == [(order[rank - 1], rank) for rank in range(1, count + 1)]
        assert (first[0], first[2]) == (chosen[row], order.index(chosen[row]) + 1)
        for token, logprob, _ in (first, *best):
            assert logprob == pytest.approx(float(exact[row, token]), rel=1e-6, abs=2e-6)


def test_logprobs_of_a_row_that_is_not_finite_are_none() -> None:
    logits = np.zeros((3, 100), np.float32)
    logits[0, 99], logits[1] = math.nan, -math.inf
    logits[2, :50] = -math.inf
    empty, also_empty, (chosen, best) = row_logprobs(logits, [0, 1, 2], [0, 0, 0], [1, 1, 1])
    assert (empty, also_empty) == ([], [])
    assert chosen == (0, -math.inf, 51)
    assert best == (50, pytest.approx(-math.log(50)), 1)


def test_a_row_may_feed_many_and_stays_as_it_was() -> None:
    logits = (np.random.default_rng(0).standard_normal((2, 300)) * 3).astype(np.float32)
    before = logits.copy()
    many = [sequence_sampler(SamplingParams(repetition_penalty=1.5), 7, index, [1, 2]) for index in range(20)]
    tokens = sample_rows(logits, [1] * 20, many)
    assert len(set(tokens)) > 3, "each index draws its own number"
    assert tokens[5] == sample_rows(logits, [1], [many[5]])[0]
    assert np.array_equal(logits, before)


def test_what_does_not_fit_is_refused() -> None:
    sampler = sequence_sampler(SamplingParams(logit_bias={90: 1.0}), 0, 0, [])
    with pytest.raises(InvalidField, match="float64"):
        sample_rows(np.zeros((1, 100)), [0], [sampler])  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="strided"):
        sample_rows(np.zeros((2, 200), np.float32)[:, ::2], [0], [sampler])
    with pytest.raises(ValueError, match="outside the row"):
        sample_rows(np.zeros((1, 90), np.float32), [0], [sampler])
    with pytest.raises(IndexError):
        sample_rows(np.zeros((1, 100), np.float32), [1], [sampler])
    with pytest.raises(ValueError, match="these can"):
        sample_rows(np.zeros((1, 100), np.float32), [0], [sampler], "no-such-unit")
