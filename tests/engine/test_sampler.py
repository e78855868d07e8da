"""The sampler against plain Python and exact distributions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams
from octavo.engine.sampler import NonFiniteLogits, sample
from octavo.ops.native.sampling import SequenceSampler, sequence_sampler

VOCABULARY = 1000
Floats = NDArray[np.float32]


def sampler(seed: int = 0, index: int = 0, prompt: tuple[int, ...] = (), **params) -> SequenceSampler:
    return sequence_sampler(SamplingParams(**params), seed, index, list(prompt))


def sampled(rows: Floats, samplers: list[SequenceSampler]) -> list[int | NonFiniteLogits]:
    return sample(np.atleast_2d(rows), list(range(len(samplers))), samplers)


def random_logits(rows: int = 1, seed: int = 0, scale: float = 3.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal((rows, VOCABULARY)) * scale).astype(np.float32)


def kept(logits: Floats, **params) -> dict[int, float]:
    """Tokens left to draw from, with their weights."""
    return dict(zip(*sampler(**params).candidates(logits), strict=True))


def best_first(logits: Floats) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))


def nucleus_by_sorting(logits: Floats, weights: dict[int, float], top_p: float) -> list[int]:
    """The smallest set of highest ones whose weights reach `top_p` of all weights."""
    total, mass, chosen = math.fsum(weights.values()), [], []
    for token in best_first(logits):
        if token in weights:
            chosen.append(token)
            mass.append(weights[token])
            if math.fsum(mass) >= top_p * total:
                break
    return sorted(chosen)


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_exactly_the_smallest_set(scale: float, top_p: float) -> None:
    logits = random_logits(seed=7, scale=scale)[0]
    assert list(kept(logits, top_p=top_p)) == nucleus_by_sorting(logits, kept(logits), top_p)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-12, 3), min_size=1, max_size=700), st.floats(0.01, 0.99))
def test_top_p_with_many_ties_keeps_the_lowest_ids(scores: list[int], top_p: float) -> None:
    logits = np.array(scores, dtype=np.float32)
    assert list(kept(logits, top_p=top_p)) == nucleus_by_sorting(logits, kept(logits), top_p)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=300), st.data())
def test_top_k_keeps_k_and_breaks_ties_by_lowest_id(scores: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    logits = np.array(scores, dtype=np.float32)
    assert list(kept(logits, top_k=count)) == sorted(best_first(logits)[:count])


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_of_either_sign_are_tied(zero: float) -> None:
    logits = np.array([-1.0, -zero, zero, -0.0, 0.0], dtype=np.float32)
    assert sampled(logits, [sampler(temperature=0.0)]) == [1]
    assert list(kept(logits, top_k=2)) == [1, 2]


def test_weights_are_the_distribution() -> None:
    logits = random_logits(seed=2)[0]
    weights = np.array(list(kept(logits, temperature=0.7).values()))
    exact = np.exp((logits.astype(np.float64) - logits.max()) / 0.7)
    np.testing.assert_allclose(weights, exact, rtol=1e-5)


def test_filters_combine_like_their_definitions() -> None:
    logits = random_logits(seed=3)[0]
    weights = kept(logits)
    among_k = sorted(best_first(logits)[:40])
    allowed = {token: weights[token] for token in among_k if weights[token] >= 0.05}
    expected = nucleus_by_sorting(logits, allowed, 0.8)
    assert kept(logits, top_k=40, min_p=0.05, top_p=0.8) == {token: weights[token] for token in expected}
    without_k = {token: weight for token, weight in weights.items() if weight >= 0.05}
    assert list(kept(logits, min_p=0.05, top_p=0.8)) == nucleus_by_sorting(logits, without_k, 0.8)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 2.0, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.0, "logit_bias": {5: 2.0, 0: -100.0}},
    ],
)
def test_frequencies_match_the_exact_distribution(params: dict) -> None:
    logits = np.array([1.0, 0.5, 0.0, 2.0, -1.0, 0.2, 1.5, -0.3], dtype=np.float32)
    shifted = logits.copy()
    for token, bias in params.get("logit_bias", {}).items():
        shifted[token] += bias
    left = list(kept(shifted, **{name: value for name, value in params.items() if name != "logit_bias"}))
    exact = np.zeros(len(logits))
    exact[left] = np.exp(shifted[left].astype(np.float64) / params["temperature"])
    exact /= exact.sum()
    draws = 4000
    counted = Counter(sampled(logits, [sampler(seed=seed, **params)])[0] for seed in range(draws))
    for token, probability in enumerate(exact.tolist()):
        spread = math.sqrt(draws * probability * (1 - probability))
        assert abs(counted[token] - draws * probability) <= 4.5 * spread + 1e-9


def adjusted(sampling: SequenceSampler, logits: Floats) -> Floats:
    row = logits.copy()
    sampling.adjust(row)
    return row


def test_penalties_against_plain_python() -> None:
    logits = random_logits(seed=11)[0]
    prompt, output = (1, 2, 2, 3), [3, 4, 4, 900]
    sampling = sampler(prompt=prompt, repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3)
    for token in output:
        sampling.append(token)
    expected = logits.tolist()
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
    for token, count in Counter(output).items():
        expected[token] -= 0.3 * count + 0.4
    np.testing.assert_allclose(adjusted(sampling, logits), expected, rtol=1e-6)
    before = logits.copy()
    sampled(logits, [sampling])
    assert np.array_equal(logits, before)  # the model's own row is untouched: logprobs need it


def test_presence_and_frequency_count_no_prompt_token() -> None:
    logits = random_logits()[0]
    counted = sampler(prompt=(5, 5, 5), presence_penalty=2.0, frequency_penalty=2.0)
    assert np.array_equal(adjusted(counted, logits), logits)
    repeated = sampler(prompt=(5, 5, 5), repetition_penalty=2.0)
    assert adjusted(repeated, logits)[5] < logits[5]


def test_token_counts_grow_without_end() -> None:
    sampling = sampler(prompt=(0,), frequency_penalty=1.0)
    for token in range(500):
        sampling.append(token)
    expected = np.where(np.arange(VOCABULARY) < 500, -1.0, 0.0)
    assert np.array_equal(adjusted(sampling, np.zeros(VOCABULARY, np.float32)), expected)


def test_a_row_never_depends_on_other_rows() -> None:
    logits = random_logits(rows=6, seed=5)
    kinds = [
        {"temperature": 0.0},
        {"repetition_penalty": 2.0, "temperature": 0.0},
        {"frequency_penalty": 1.0},
        {"top_p": 0.5},
        {"top_k": 7, "temperature": 1.3},
        {"min_p": 0.1},
    ]
    alone = [sampled(logits[row], [sampler(seed=row, prompt=(1, 2), **kinds[row])])[0] for row in range(6)]
    order = [3, 5, 0, 4, 2, 1]
    together = sample(logits, order, [sampler(seed=row, prompt=(1, 2), **kinds[row]) for row in order])
    assert together == [alone[row] for row in order]


def test_bug_s3_ties_and_tiny_temperatures_are_greedy() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[700, 30, 999]] = 4.0
    for seed in range(5):
        assert sampled(logits, [sampler(seed=seed, temperature=0.0)]) == [30]
        assert sampled(logits, [sampler(seed=seed, temperature=1.5, top_k=1)]) == [30]
    rows = random_logits(rows=20, seed=9)
    greedy = sampled(rows, [sampler(temperature=0.0)] * 20)
    for temperature in (1e-5, 1e-38, 5e-324):
        for seed in range(3):
            assert sampled(rows, [sampler(seed=seed, temperature=temperature)] * 20) == greedy


def test_min_tokens_bans_the_ends_until_enough_tokens_were_said() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[2] = 50.0
    sampling = sequence_sampler(SamplingParams(temperature=0.0, min_tokens=1), 0, 0, [], banned_ids=[2])
    assert sampled(logits, [sampling]) == [0]
    sampling.append(0)
    assert sampled(logits, [sampling]) == [2]


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 5}, {"presence_penalty": 1.0}]
)
def test_non_finite_logits_end_one_row_only(bad: float, params: dict) -> None:
    logits = random_logits(rows=3)
    expected = sampled(logits, [sampler(**params)] * 3)
    logits[1, 17] = bad
    tokens = sampled(logits, [sampler(**params)] * 3)
    assert isinstance(tokens[1], NonFiniteLogits)
    assert "token 17" in str(tokens[1])
    assert [tokens[0], tokens[2]] == [expected[0], expected[2]]


def test_tokens_at_minus_infinity_are_never_drawn() -> None:
    logits = np.full(VOCABULARY, -math.inf, np.float32)
    logits[[7, 500]] = 0.0
    tokens = {sampled(logits, [sampler(seed=seed, top_p=0.99)])[0] for seed in range(50)}
    assert tokens == {7, 500}
    logits[[7, 500]] = -math.inf
    assert isinstance(sampled(logits, [sampler()])[0], NonFiniteLogits)
