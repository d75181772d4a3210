"""Losslessness on five architectures: greedy token identity, caches after every round, identical and hostile drafts."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from breakeven.drafters.base import Drafter
from breakeven.drafters.early_exit import EarlyExitDrafter
from breakeven.models.adapter import LayeredModel
from breakeven.speculative.loop import Generation
from helpers.drafting import DRAFTERS, Inspecting, Scripted, build, decode, oracle
from helpers.models import ARCHITECTURES, WINDOW, random_model

# --- greedy decoding: token identity ---

PROMPT = [40, 72, 72, 105, 40, 72, 72, 9, 200, 40, 72]
N_NEW = 24
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
    config = GenerationConfig(do_sample=False, max_new_tokens=N_NEW, pad_token_id=0)
    reference = target.model.generate(torch.tensor([LONG_PROMPT]), generation_config=config)
    assert reference.shape[1] == len(LONG_PROMPT) + N_NEW
    assert plain_output(architecture, dtype, N_NEW).tokens == reference[0, len(LONG_PROMPT) :].tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_plain_decodings_whatever_the_drafter_and_k_30042(
    architecture: str, name: str, k: int
) -> None:
    target = random_model(architecture)
    plain = plain_output(architecture, torch.float64, N_NEW)
    out = decode(target, build(name, target, relative(architecture)), LONG_PROMPT, max_new_tokens=N_NEW, k=k)
    assert out.tokens == plain.tokens
    # The margins that judge near ties come from the same positions.
    np.testing.assert_allclose(out.margins, plain.margins, atol=1e-9)
    assert sum(r.n_emitted for r in out.rounds) == N_NEW - 1
    # Not merely plain decoding: drafts were tested, and those of models were sometimes right and sometimes wrong.
    assert any(r.end_reason == "reject" for r in out.rounds)
    assert name == "ngram" or sum(r.n_accepted for r in out.rounds) > 0


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_plain_decodings_in_float32(architecture: str, name: str) -> None:
    target = random_model(architecture, torch.float32)
    draft = relative(architecture, torch.float32)
    out = decode(target, build(name, target, draft), LONG_PROMPT, max_new_tokens=N_NEW, k=3)
    assert out.tokens == plain_output(architecture, torch.float32, N_NEW).tokens


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
    out = decode(target, drafter, LONG_PROMPT, max_new_tokens=20, k=3, temperature=temperature)
    assert drafter.n_inspected == len(out.rounds) > 0
    assert temperature > 0 or drafter.n_partial > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_caches_after_full_acceptance_equal_a_fresh_prefill_5765(architecture: str) -> None:
    target = random_model(architecture)
    drafter = Inspecting(build("small_lm", target, target), tolerance=1e-9)
    decode(target, drafter, LONG_PROMPT, max_new_tokens=20, k=3)
    assert drafter.n_full >= 4


def test_accepted_tokens_have_the_full_models_keys_not_the_exit_layers() -> None:
    # An exit after the last layer but one accepts often; all layers must hold what the whole model computes.
    target = random_model("llama", layers=6)
    drafter = Inspecting(EarlyExitDrafter(target, 5), tolerance=1e-9)
    out = decode(target, drafter, PROMPT, max_new_tokens=60, k=3)
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
