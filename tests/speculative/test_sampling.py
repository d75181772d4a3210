"""Draws, temperatures and random streams."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from breakeven.speculative.sampling import STREAMS, draw, probabilities, uniforms
from helpers.exact import Source, law

ALMOST_ONE = math.nextafter(1.0, 0.0)
WEIGHTS = st.lists(st.floats(0, 1e3) | st.just(0.0), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-300)


@given(WEIGHTS)
def test_law_of_a_draw_is_the_normalised_weights(weights: list[float]) -> None:
    tensor = torch.tensor(weights, dtype=torch.float64)

    def run(source: Source) -> int:
        return draw(tensor, source.uniform("u"))  # type: ignore[arg-type]

    induced = law(run)
    for i, weight in enumerate(weights):
        assert induced.get(i, 0.0) == pytest.approx(weight / sum(weights), abs=1e-12)


@given(WEIGHTS, st.floats(0, ALMOST_ONE) | st.just(0.0) | st.just(ALMOST_ONE))
def test_zero_weight_is_never_drawn_even_at_the_ends(weights: list[float], uniform: float) -> None:
    assert weights[draw(torch.tensor(weights, dtype=torch.float64), uniform)] > 0


def test_draw_at_its_exact_breakpoints() -> None:
    weights = torch.tensor([0.25, 0.0, 0.5, 0.25], dtype=torch.float64)
    below = math.nextafter
    cases = [(0.0, 0), (below(0.25, 0), 0), (0.25, 2), (below(0.75, 0), 2), (0.75, 3), (ALMOST_ONE, 3)]
    assert [draw(weights, u) for u, _ in cases] == [index for _, index in cases]


def test_trailing_zeros_are_not_drawn_when_the_product_rounds_up_to_the_total() -> None:
    weights = torch.tensor([5e-324, 5e-324, 0.0, 0.0], dtype=torch.float64)  # u * total rounds to total
    assert ALMOST_ONE * weights.sum().item() == weights.sum().item()
    assert draw(weights, ALMOST_ONE) == 1


def test_no_mass_is_an_error_and_not_token_0() -> None:
    for weights in ([0.0, 0.0], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="no mass"):
            draw(torch.tensor(weights), 0.5)


def test_every_token_of_a_long_float32_vocabulary_can_be_drawn() -> None:
    # A float32 running sum near 1 has steps of 6e-8: entries of 1e-9 would fall between them and never be drawn.
    weights = torch.full((150_000,), 1e-9)
    weights[0] = 1.0
    sums = weights.double().cumsum(0)
    for index in (0, 1, 1000, 75_001, 149_999):
        middle = (sums[index] - weights[index].double() / 2) / sums[-1]
        assert draw(weights, float(middle)) == index


def test_softmax_is_float32_for_narrow_logits_and_float64_stays() -> None:
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        assert probabilities(torch.zeros(2, 5, dtype=dtype), 1.0).dtype == expected


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6), st.floats(0.05, 5))
def test_temperature_divides_the_logits(logits: list[float], temperature: float) -> None:
    scaled = np.array(logits) / temperature
    expected = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
    np.testing.assert_allclose(
        probabilities(torch.tensor(logits, dtype=torch.float64), temperature).numpy(), expected, atol=1e-12
    )


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_0_has_no_softmax_10198(temperature: float) -> None:
    with pytest.raises(ValueError, match="greedy"):
        probabilities(torch.zeros(3), temperature)


def test_tiny_temperature_has_no_nan() -> None:
    p = probabilities(torch.tensor([1.0, 2.0, -3e4]), 1e-6)
    assert p.tolist() == [0.0, 1.0, 0.0]


def test_streams_depend_on_each_of_seed_prompt_step_and_stream_9441() -> None:
    names = list(itertools.product([0, 1, 2**32, 2**64], ["a", "b", "", "é"], [0, 1, 2], STREAMS))
    firsts = [uniforms(seed, prompt, step, stream, 1)[0] for seed, prompt, step, stream in names]
    assert len(set(firsts)) == len(names)


def test_prompts_whose_crc32_collides_still_have_their_own_streams() -> None:
    assert uniforms(0, "plumless", 0, "draft", 4) != uniforms(0, "buckeroo", 0, "draft", 4)


def test_streams_are_reproducible_and_ignore_the_global_generators() -> None:
    first = uniforms(3, "p", 5, "accept", 6)
    np.random.seed(0)
    torch.manual_seed(0)
    assert uniforms(3, "p", 5, "accept", 6) == first


def test_a_shorter_stream_is_a_prefix_of_a_longer_one() -> None:
    # A draft that is cut at end of sequence keeps the draws of the tokens before.
    assert uniforms(3, "p", 5, "accept", 8)[:3] == uniforms(3, "p", 5, "accept", 3)
    assert uniforms(3, "p", 5, "accept", 0) == []


def test_unknown_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="draft, accept, next"):
        uniforms(0, "p", 0, "residual", 1)


def test_draws_are_uniform_and_uncorrelated_between_streams_and_steps() -> None:
    draws = np.array([[uniforms(1, f"p{i}", s, stream, 2) for s in (0, 1) for stream in STREAMS] for i in range(700)])
    columns = draws.reshape(700, -1)
    assert columns.min() >= 0
    assert columns.max() < 1
    assert stats.kstest(columns.ravel(), "uniform").pvalue > 1e-4
    correlation = np.corrcoef(columns.T) - np.eye(columns.shape[1])
    assert np.abs(correlation).max() < 4.5 / math.sqrt(700)
