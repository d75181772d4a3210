"""Losslessness of whole requests: exact laws through the real loop, greedy token identity, caches after every round."""

from __future__ import annotations

import copy
import functools
import math

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from breakeven.drafters.base import Drafter
from breakeven.drafters.early_exit import EarlyExitDrafter
from breakeven.models.adapter import LayeredModel
from breakeven.speculative import loop, verify
from breakeven.speculative.loop import Generation
from helpers.drafting import DRAFTERS, Inspecting, Scripted, broken_residual, build, decode, drafter_on_table, oracle
from helpers.exact import as_uniforms, law, total_variation
from helpers.models import ARCHITECTURES, WINDOW, TableModel, random_model, small_llama

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


# --- greedy decoding: token identity ---

PROMPT = [40, 72, 72, 105, 40, 72, 72, 9, 200, 40, 72]
LONG_PROMPT = PROMPT * 3  # several of Gemma's windows


@functools.cache
def plain_output(architecture: str, dtype: torch.dtype, n_new: int) -> Generation:
    return decode(random_model(architecture, dtype), None, LONG_PROMPT, max_new_tokens=n_new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_greedy_equals_transformers_generate(
    architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(LONG_PROMPT) > 3 * WINDOW
    target = random_model(architecture, dtype)
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", None)
    config = GenerationConfig(do_sample=False, max_new_tokens=40, pad_token_id=0)
    reference = target.model.generate(torch.tensor([LONG_PROMPT]), generation_config=config)
    assert reference.shape[1] == len(LONG_PROMPT) + 40
    assert plain_output(architecture, dtype, 40).tokens == reference[0, len(LONG_PROMPT) :].tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_plain_decodings_whatever_the_drafter_and_k_30042(
    architecture: str, name: str, k: int
) -> None:
    target = random_model(architecture)
    plain = plain_output(architecture, torch.float64, 40)
    out = decode(target, build(name, target, relative(architecture)), LONG_PROMPT, max_new_tokens=40, k=k)
    assert out.tokens == plain.tokens
    # The margins that judge near ties come from the same positions.
    np.testing.assert_allclose(out.margins, plain.margins, atol=1e-9)
    assert sum(r.n_emitted for r in out.rounds) == 39
    assert sum(r.n_accepted for r in out.rounds) > 0  # not merely plain decoding with failed drafts
    assert any(r.end_reason == "reject" for r in out.rounds)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_plain_decodings_in_float32(architecture: str, name: str) -> None:
    target = random_model(architecture, torch.float32)
    draft = relative(architecture, torch.float32)
    out = decode(target, build(name, target, draft), LONG_PROMPT, max_new_tokens=40, k=3)
    assert out.tokens == plain_output(architecture, torch.float32, 40).tokens


@functools.cache
def relative(architecture: str, dtype: torch.dtype = torch.float64) -> LayeredModel:
    """A draft that agrees with the target sometimes: its weights with noise."""
    target = random_model(architecture, dtype)
    model = copy.deepcopy(target.model)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            if parameter.ndim > 1:
                parameter.add_(0.08 * parameter.std() * noise)
    return LayeredModel(model, target.tokenizer, "relative")


# --- caches: after every round they are those of a fresh prefill ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_caches_after_every_round_equal_a_fresh_prefill_30312(architecture: str, name: str, temperature: float) -> None:
    target = random_model(architecture)
    drafter = Inspecting(build(name, target, relative(architecture)), tolerance=1e-9)
    out = decode(target, drafter, LONG_PROMPT, max_new_tokens=30, k=3, temperature=temperature)
    assert drafter.n_inspected == len(out.rounds) > 0
    assert drafter.n_partial > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_caches_after_full_acceptance_equal_a_fresh_prefill_5765(architecture: str) -> None:
    target = random_model(architecture)
    drafter = Inspecting(build("small_lm", target, target), tolerance=1e-9)
    decode(target, drafter, LONG_PROMPT, max_new_tokens=30, k=3)
    assert drafter.n_full >= 7


def test_accepted_tokens_have_the_full_models_keys_not_the_exit_layers() -> None:
    # An exit after the last layer but one accepts often; all layers must hold what the whole model computes.
    target = random_model("llama", layers=6)
    drafter = Inspecting(EarlyExitDrafter(target, 5), tolerance=1e-9)
    out = decode(target, drafter, PROMPT, max_new_tokens=80, k=3)
    assert sum(r.n_accepted for r in out.rounds) >= 5
    assert drafter.n_full > 0


# --- identity and hostile drafters ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_draft_equal_to_target_is_accepted_whole_for_200_tokens(architecture: str, temperature: float) -> None:
    target = random_model(architecture)
    drafter = build("small_lm", target, target)
    out = decode(target, drafter, PROMPT, max_new_tokens=200, k=4, temperature=temperature)
    assert {r.end_reason for r in out.rounds} <= {"full", "no_draft"}
    assert all(r.n_accepted == r.n_drafted == r.k_planned for r in out.rounds)
    assert len(out.rounds) == 40  # 199 tokens: 39 rounds of 5, and 4 with the draft cut to 3
    np.testing.assert_allclose([s for r in out.rounds for s in r.sum_min], 1.0, atol=1e-9)


def hostile(target: LayeredModel, plain: list[int], prompt: list[int], eos: int) -> dict[str, Drafter]:
    random = np.random.default_rng(0)
    everything = frozenset(range(1000))
    return {
        "random": Scripted(target, lambda _, k: random.integers(target.vocab_size, size=k).tolist()),
        "always wrong": oracle(target, [*prompt, *plain], wrong_at=everything),
        "wrong every third": oracle(target, [*prompt, *plain], wrong_at=frozenset(range(0, 1000, 3))),
        "always eos": Scripted(target, lambda _, k: [eos] * k),
        "one token however many are asked for": Scripted(target, lambda tokens, k: tokens[-1:] if k else []),
        "nothing": Scripted(target, lambda _, k: []),
        "the last token again": Scripted(target, lambda tokens, k: tokens[-1:] * k),
    }


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_hostile_drafters_change_nothing(architecture: str) -> None:
    target = random_model(architecture)
    plain = decode(target, None, PROMPT, max_new_tokens=40)
    eos = next(token for token in range(target.vocab_size) if token not in plain.tokens)
    drafters = hostile(target, plain.tokens, PROMPT, eos)
    for name, drafter in drafters.items():
        out = decode(target, drafter, PROMPT, max_new_tokens=40, k=4, eos_ids=frozenset([eos]))
        assert out.tokens == plain.tokens, name
        n_emitted = [r.n_emitted for r in out.rounds]
        if name in {"always wrong", "always eos", "nothing"}:
            assert n_emitted == [1] * 39, name


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
