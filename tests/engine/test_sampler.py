"""The sampler against plain Python and exact distributions."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.sampling_params import SamplingParams
from octavo.engine.randomness import uniform
from octavo.engine.sampler import NonFiniteLogits, SamplingState, sample
from octavo.engine.truncation import most_likely, nucleus, truncate

VOCABULARY = 1000


def state(seed: int = 0, index: int = 0, prompt: tuple[int, ...] = (), **params) -> SamplingState:
    return SamplingState(SamplingParams(**params), seed, index, list(prompt))


def random_logits(rows: int = 1, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * scale


def nucleus_by_sorting(probabilities: torch.Tensor, top_p: float) -> list[int]:
    order = sorted(range(len(probabilities)), key=lambda token: (-float(probabilities[token]), token))
    total, mass, kept = math.fsum(map(float, probabilities)), [], []
    for token in order:
        kept.append(token)
        mass.append(float(probabilities[token]))
        if math.fsum(mass) >= top_p * total:
            break
    return sorted(kept)


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_exactly_the_smallest_set(scale: float, top_p: float) -> None:
    probabilities = torch.softmax(random_logits(seed=7, scale=scale)[0], -1)
    assert nucleus(probabilities, top_p).tolist() == nucleus_by_sorting(probabilities, top_p)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=700), st.floats(0.01, 0.99))
def test_top_p_with_many_ties_keeps_the_lowest_ids(weights: list[int], top_p: float) -> None:
    if not any(weights):
        weights[0] = 1
    probabilities = torch.tensor(weights, dtype=torch.float32) / 64  # exact in binary: sums have no rounding
    kept = nucleus(probabilities, top_p).tolist()
    assert kept == nucleus_by_sorting(probabilities, top_p)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=200), st.data())
def test_top_k_keeps_k_and_breaks_ties_by_lowest_id(scores: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    expected = sorted(sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:count])
    assert most_likely(torch.tensor(scores, dtype=torch.float32), count).tolist() == expected


def test_filters_combine_like_their_definitions() -> None:
    probabilities = torch.softmax(random_logits(seed=3)[0], -1)
    ids, kept = truncate(probabilities, SamplingParams(top_k=40, min_p=0.05, top_p=0.8))
    allowed = [t for t in most_likely(probabilities, 40).tolist() if probabilities[t] >= 0.05 * probabilities.max()]
    inside = torch.zeros_like(probabilities)
    inside[allowed] = probabilities[allowed]
    expected = nucleus_by_sorting(inside, 0.8)
    assert ids is not None
    assert ids.tolist() == expected
    assert torch.equal(kept, probabilities[expected])


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
    logits = torch.tensor([1.0, 0.5, 0.0, 2.0, -1.0, 0.2, 1.5, -0.3])
    shifted = logits.clone()
    for token, bias in params.get("logit_bias", {}).items():
        shifted[token] += bias
    exact = torch.softmax(shifted.double() / params["temperature"], -1)
    ids, _ = truncate(exact.float(), SamplingParams(**params))
    if ids is not None:
        exact = torch.zeros_like(exact).index_copy_(0, ids, exact[ids])
        exact /= exact.sum()
    draws = 4000
    counted = Counter(sample(logits[None], [state(seed=seed, **params)])[0] for seed in range(draws))
    for token, probability in enumerate(exact.tolist()):
        spread = math.sqrt(draws * probability * (1 - probability))
        assert abs(counted[token] - draws * probability) <= 4.5 * spread + 1e-9


def test_penalties_against_plain_python() -> None:
    logits = random_logits(seed=11)[0]
    prompt, output = [1, 2, 2, 3], [3, 4, 4, 900]
    params = SamplingParams(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3)
    sampling = SamplingState(params, 0, 0, prompt)
    for token in output:
        sampling.append(token)
    expected = logits.tolist()
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
    for token, count in Counter(output).items():
        expected[token] -= 0.3 * count + 0.4
    torch.testing.assert_close(sampling.adjust(logits), torch.tensor(expected))
    assert torch.equal(logits, random_logits(seed=11)[0])  # the model's own row is untouched: logprobs need it


def test_presence_and_frequency_count_no_prompt_token() -> None:
    logits = random_logits()[0]
    counted = state(prompt=(5, 5, 5), presence_penalty=2.0, frequency_penalty=2.0)
    assert torch.equal(counted.adjust(logits), logits)
    repeated = state(prompt=(5, 5, 5), repetition_penalty=2.0)
    assert repeated.adjust(logits)[5] < logits[5]


def test_token_counts_grow_past_their_first_capacity() -> None:
    sampling = state(prompt=(0,), frequency_penalty=1.0)
    for token in range(500):
        sampling.append(token)
    assert torch.equal(sampling.adjust(torch.zeros(VOCABULARY)), -(torch.arange(VOCABULARY) < 500).float())


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
    alone = [sample(logits[row : row + 1], [state(seed=row, prompt=(1, 2), **kinds[row])])[0] for row in range(6)]
    together = sample(logits, [state(seed=row, prompt=(1, 2), **kinds[row]) for row in range(6)])
    order = [3, 5, 0, 4, 2, 1]
    shuffled = sample(logits[order], [state(seed=row, prompt=(1, 2), **kinds[row]) for row in order])
    assert together == alone
    assert shuffled == [alone[row] for row in order]


def test_bug_s3_ties_and_tiny_temperatures_are_greedy() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[[700, 30, 999]] = 4.0
    for seed in range(5):
        assert sample(logits[None], [state(seed=seed, temperature=0.0)]) == [30]
        assert sample(logits[None], [state(seed=seed, temperature=1.5, top_k=1)]) == [30]
    rows = random_logits(rows=20, seed=9)
    greedy = sample(rows, [state(temperature=0.0)] * 20)
    for temperature in (1e-5, 1e-38, 5e-324):
        for seed in range(3):
            assert sample(rows, [state(seed=seed, temperature=temperature)] * 20) == greedy


def test_min_tokens_bans_the_ends_until_enough_tokens_were_said() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 2] = 50.0
    sampling = SamplingState(SamplingParams(temperature=0.0, min_tokens=1), 0, 0, [], banned_ids=[2])
    assert sample(logits, [sampling]) == [0]
    sampling.append(0)
    assert sample(logits, [sampling]) == [2]


def test_non_finite_logits_end_one_row_only() -> None:
    logits = random_logits(rows=3)
    logits[1, 17] = math.nan
    tokens = sample(logits, [state(temperature=0.0)] * 3)
    assert isinstance(tokens[1], NonFiniteLogits)
    assert tokens[0] == int(logits[0].argmax())
    assert tokens[2] == int(logits[2].argmax())


def test_draws_are_keyed_by_seed_index_and_position() -> None:
    draws = [uniform(seed, index, position) for seed in range(-8, 8) for index in range(8) for position in range(32)]
    assert len(set(draws)) == len(draws)
    assert all(0.0 <= draw < 1.0 for draw in draws)
    histogram = Counter(int(draw * 16) for draw in draws)
    assert all(abs(count - 256) < 5 * 16 for count in histogram.values())
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02
