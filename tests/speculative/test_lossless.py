"""Losslessness of sampled outputs: exact laws of whole requests through the real loop, without sampling.

Greedy identity and the caches are in test_architectures.py, the real random streams in test_sequence_law.py.
"""

from __future__ import annotations

import math

import pytest

from breakeven.drafters.base import Drafter
from breakeven.models.adapter import LayeredModel
from breakeven.speculative import loop, verify
from helpers.drafting import DRAFTERS, Scripted, broken_residual, build, decode, drafter_on_table
from helpers.exact import as_uniforms, law, total_variation
from helpers.models import TableModel, small_llama

REPETITIVE = [0, 1, 1, 0, 1, 1, 0]  # n-gram lookup fires from the first round on


# --- exact laws of sequences: every branch of every draw, no sampling ---


def exact_law(
    target: LayeredModel, drafter: Drafter | None, monkeypatch: pytest.MonkeyPatch, **request: object
) -> dict[tuple[int, ...], float]:
    """Law of the output of the real `generate`; only the uniform numbers are replaced."""

    def run(source):
        monkeypatch.setattr(loop, "uniforms", as_uniforms(source))
        return tuple(decode(target, drafter, REPETITIVE, **request).tokens)

    return law(run)


# (vocabulary, new tokens, k): short enough to enumerate; the later rounds of each have k cut by the output limit.
SIZES = [(4, 3, 1), (3, 4, 2), (2, 5, 3)]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("vocabulary", "n_new", "k"), SIZES)
@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_sequence_law_is_the_targets_exactly(
    name: str | None, vocabulary: int, n_new: int, k: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableModel(vocabulary)
    induced = exact_law(
        target, drafter_on_table(name, target), monkeypatch, max_new_tokens=n_new, k=k, temperature=temperature
    )
    expected = target.law(REPETITIVE, n_new, temperature)
    assert len(induced) == vocabulary**n_new
    assert total_variation(induced, expected) < 1e-12


@pytest.mark.parametrize("eos", [0, 1])
@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_sequence_law_with_an_end_of_sequence_token_0_or_1(
    name: str | None, eos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableModel(2, seed=2)
    induced = exact_law(
        target,
        drafter_on_table(name, target),
        monkeypatch,
        max_new_tokens=4,
        k=3,
        temperature=1.0,
        eos_ids=frozenset([eos]),
    )
    expected = target.law(REPETITIVE, 4, 1.0, eos=frozenset([eos]))
    assert induced.keys() == expected.keys()
    assert total_variation(induced, expected) < 1e-12


@pytest.mark.parametrize("name", DRAFTERS)
def test_sequence_law_of_a_real_transformer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = small_llama(3), small_llama(3, layers=1, seed=5)
    request = {"max_new_tokens": 3, "k": 2, "temperature": 1.0}
    plain = exact_law(target, None, monkeypatch, **request)
    speculative = exact_law(target, build(name, target, draft), monkeypatch, **request)
    assert len(plain) == 27
    assert max(plain.values()) < 0.9  # not a law that anything would match
    assert total_variation(plain, speculative) < 1e-12


def broken_shared_draw(p, q, draft, accept, following):
    return verify.verify_rejection(p, q, draft, accept, accept[0])


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("kernel", [broken_residual, broken_shared_draw])
def test_a_broken_kernel_shows_in_the_sequence_law(kernel, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "verify_rejection", kernel)
    target = TableModel(2)
    induced = exact_law(target, drafter_on_table(name, target), monkeypatch, max_new_tokens=4, k=2, temperature=1.0)
    assert total_variation(induced, target.law(REPETITIVE, 4, 1.0)) > 1e-3


def test_one_stream_for_two_decisions_shows_in_the_sequence_law(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableModel(2)
    drafter = drafter_on_table("small_lm", target)

    def run(source):
        independent = as_uniforms(source)
        monkeypatch.setattr(
            loop, "uniforms", lambda seed, prompt, step, _, n: independent(seed, prompt, step, "one", n)
        )
        return tuple(decode(target, drafter, REPETITIVE, max_new_tokens=4, k=2, temperature=1.0).tokens)

    assert total_variation(law(run), target.law(REPETITIVE, 4, 1.0)) > 1e-3


@pytest.mark.parametrize("name", DRAFTERS)
def test_expected_acceptance_is_the_logged_sum_min_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given the prefix, a tested draft token is accepted with probability sum_y min(p, q); so the expectations of
    # accepted tokens and of the logged sums are equal, whatever the drafter, k or early stop.
    target = TableModel(2)
    drafter = drafter_on_table(name, target)

    def run(source):
        monkeypatch.setattr(loop, "uniforms", as_uniforms(source))
        rounds = decode(target, drafter, REPETITIVE, max_new_tokens=5, k=3, temperature=1.0).rounds
        return sum(r.n_accepted for r in rounds), sum(math.fsum(r.sum_min) for r in rounds)

    outcomes = law(run)
    accepted = sum(weight * a for (a, _), weight in outcomes.items())
    overlap = sum(weight * s for (_, s), weight in outcomes.items())
    assert accepted > 0.3
    assert accepted == pytest.approx(overlap, abs=1e-12)


# --- hostile drafters, sampling ---


@pytest.mark.parametrize("script", ["the last token again", "nothing", "end of sequence"])
def test_hostile_drafters_leave_the_sampling_law(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableModel(3)
    scripts = {
        "the last token again": lambda tokens, k: tokens[-1:] * k,
        "nothing": lambda _, k: [],
        "end of sequence": lambda _, k: [0] * k,
    }
    induced = exact_law(
        target,
        Scripted(target, scripts[script]),
        monkeypatch,
        max_new_tokens=4,
        k=2,
        temperature=1.0,
        eos_ids=frozenset([0]),
    )
    assert total_variation(induced, target.law(REPETITIVE, 4, 1.0, eos=frozenset([0]))) < 1e-12
