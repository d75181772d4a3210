"""The decoding loop: counts, random streams, state between requests, low precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from breakeven.models.adapter import LayeredModel
from breakeven.speculative import loop
from breakeven.speculative.loop import Generation, Request, generate
from breakeven.speculative.sampling import probabilities
from helpers.drafting import DRAFTERS, PROMPT, TABLE_PROMPT, build, decode, drafter_on_table
from helpers.models import TableModel, random_model


@pytest.fixture(scope="module")
def target() -> LayeredModel:
    return random_model("llama")


# --- counts: every round log obeys them ---


def check_log(out: Generation, prompt: list[int], k: int, max_new: int, eos: frozenset[int]) -> None:
    assert 1 <= len(out.tokens) <= max_new
    assert not eos & set(out.tokens[:-1])
    assert out.end_reason == ("eos" if out.tokens[-1] in eos else "max_len")
    assert out.end_reason == "eos" or len(out.tokens) == max_new
    assert len(out.margins) == len(out.tokens)
    ctx_lens = itertools.accumulate((r.n_emitted for r in out.rounds), initial=len(prompt) + 1)
    assert [*[r.ctx_len for r in out.rounds], len(prompt) + len(out.tokens)] == list(ctx_lens)
    for r in out.rounds:
        tested = r.n_accepted + (r.end_reason == "reject")
        assert len(r.sum_min) == len(r.p_draft) == len(r.q_draft) == tested <= r.n_drafted <= r.k_planned <= k
        assert r.n_emitted == r.n_accepted + (r.end_reason != "eos")
        assert (r.end_reason == "no_draft") == (r.n_drafted == 0)
        assert (r.end_reason == "reject") == (r.n_accepted < r.n_drafted)
        assert all(0 <= value <= 1 + 1e-9 for value in (*r.sum_min, *r.p_draft, *r.q_draft))
        assert r.top2_margin >= 0
        assert min(r.draft_s, r.verify_s, r.other_s, r.record_s) >= 0
    assert out.decode_s == pytest.approx(sum(r.draft_s + r.verify_s + r.other_s for r in out.rounds))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_counts_agree_with_each_other_in_every_round(name: str | None, temperature: float) -> None:
    target = TableModel(5, seed=3)
    drafter = drafter_on_table(name, target)
    random = np.random.default_rng(0)
    for i in range(60):
        prompt = random.integers(5, size=random.integers(1, 9)).tolist()
        k, max_new = int(random.integers(1, 6)), int(random.integers(1, 12))
        eos = frozenset(random.integers(5, size=random.integers(0, 2)).tolist())
        changes = {"k": k, "max_new_tokens": max_new, "eos_ids": eos, "prompt_id": f"{i}", "temperature": temperature}
        check_log(decode(target, drafter, prompt, **changes), prompt, k, max_new, eos)


def test_logged_probabilities_are_those_of_the_tested_tokens() -> None:
    target, draft = TableModel(4, seed=1), TableModel(4, n_layers=1, seed=7)
    out = decode(target, build("small_lm", target, draft), TABLE_PROMPT, max_new_tokens=40, k=3, temperature=0.7)
    p_table, q_table = (probabilities(model.tables[-1], 0.7) for model in (target, draft))
    text = TABLE_PROMPT + out.tokens
    n_checked = 0
    for r in out.rounds:
        for i in range(r.n_accepted):
            at = r.ctx_len + i
            row = text[at - 2], text[at - 1]
            assert r.p_draft[i] == pytest.approx(float(p_table[row][text[at]]))
            assert r.q_draft[i] == pytest.approx(float(q_table[row][text[at]]))
            assert r.sum_min[i] == pytest.approx(float(torch.minimum(p_table[row], q_table[row]).sum()))
            n_checked += 1
    assert n_checked > 10


def test_margins_are_the_top_two_logits_where_each_token_was_chosen(target: LayeredModel) -> None:
    out = decode(target, build("small_lm", target, target), PROMPT, max_new_tokens=12, k=3)
    text = torch.tensor([PROMPT + out.tokens])
    with torch.inference_mode():
        logits = target.model(text).logits[0, len(PROMPT) - 1 : -1]
    top = logits.topk(2).values
    np.testing.assert_allclose(out.margins, (top[:, 0] - top[:, 1]).numpy(), atol=1e-5)
    assert [r.top2_margin for r in out.rounds] == [
        out.margins[r.ctx_len + r.n_emitted - len(PROMPT) - 1] for r in out.rounds
    ]


# --- random streams ---


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_sampled_outputs_are_reproducible_and_depend_on_seed_and_prompt_id(name: str | None) -> None:
    target = TableModel(6, seed=1)

    def sample(**changes: object) -> list[int]:
        defaults = {"temperature": 1.0, "max_new_tokens": 40}
        return decode(target, drafter_on_table(name, target), TABLE_PROMPT, **(defaults | changes)).tokens

    torch.manual_seed(1)
    first = sample()
    torch.manual_seed(2)
    assert sample() == first
    assert sample(seed=2) != first
    assert sample(prompt_id="q") != first


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_order_of_prompts_changes_nothing_and_no_state_is_left_28759(name: str | None, temperature: float) -> None:
    target = random_model("gemma3_text")
    drafter = None if name is None else build(name, target, random_model("gemma3_text", seed=1))
    prompts = {"a": PROMPT * 3, "b": [5, 6, 5, 6, 5], "c": [9]}

    def in_order(ids: str) -> dict[str, list[int]]:
        cache = target.new_cache(60)  # one cache and one drafter for all requests
        requests = [Request(prompts[i], i, 3, temperature, 12, frozenset([17]), 0) for i in ids]
        return {r.prompt_id: generate(target, drafter, r, cache).tokens for r in requests}

    expected = in_order("abc")
    assert in_order("cba") == in_order("bacab") == expected
    alone = {i: in_order(i)[i] for i in "abc"}
    assert alone == expected


def test_a_request_that_was_interrupted_leaves_nothing_behind(target: LayeredModel) -> None:
    drafter = build("early_exit", target)
    cache = target.new_cache(60)
    request = Request(PROMPT, "p", 3, 0.0, 12, frozenset(), 0)
    expected = generate(target, drafter, request, cache).tokens
    real, drafter.commit = drafter.commit, lambda n: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        generate(target, drafter, request, cache)
    drafter.commit = real
    assert generate(target, drafter, request, cache).tokens == expected


def test_every_stream_is_asked_for_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableModel(5, seed=3)
    asked: list[tuple[int, str]] = []
    real = loop.uniforms

    def spy(seed: int, prompt_id: str, step: int, stream: str, n: int) -> list[float]:
        asked.append((step, stream))
        return real(seed, prompt_id, step, stream, n)

    monkeypatch.setattr(loop, "uniforms", spy)
    out = decode(target, drafter_on_table("small_lm", target), TABLE_PROMPT, max_new_tokens=30, temperature=1.0)
    assert len(asked) == len(set(asked))
    assert {step for step, _ in asked} == set(range(len(out.rounds) + 1))


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_temperature_reaches_draft_and_target_alike_10198(temperature: float) -> None:
    # A draft equal to the target is accepted whole only if both sides are scaled by the same temperature.
    target = TableModel(5, seed=3)
    drafter = build("small_lm", target, target)
    out = decode(target, drafter, TABLE_PROMPT, max_new_tokens=200, temperature=temperature)
    assert all(r.n_accepted == r.n_drafted for r in out.rounds)
    assert np.allclose([s for r in out.rounds for s in r.sum_min], 1.0)


def test_greedy_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch, target: LayeredModel) -> None:
    monkeypatch.setattr(loop, "uniforms", None)
    for name in DRAFTERS:
        decode(target, build(name, target, target), PROMPT, max_new_tokens=8)


# --- low precision: a divergence from plain decoding is a near tie (3.9 c) ---


@pytest.mark.parametrize("name", DRAFTERS)
def test_bfloat16_diverges_only_at_near_ties_39421(name: str) -> None:
    target = random_model("llama", torch.bfloat16)
    draft = random_model("llama", torch.bfloat16, seed=1)
    plain = decode(target, None, PROMPT * 2, max_new_tokens=60)
    out = decode(target, build(name, target, draft), PROMPT * 2, max_new_tokens=60, k=4)
    for i, (a, b) in enumerate(zip(plain.tokens, out.tokens, strict=True)):
        if a != b:
            # Logits near 8 have steps of 1/32 in bfloat16; a few layers of rounding make a few of those.
            assert max(plain.margins[i], out.margins[i]) <= 0.25
            break


def test_bfloat16_samples_with_float32_probabilities() -> None:
    target = random_model("llama", torch.bfloat16)
    out = decode(target, build("small_lm", target, target), PROMPT, max_new_tokens=60, k=3, temperature=1.0)
    accepted = sum(r.n_accepted for r in out.rounds) / sum(r.n_drafted for r in out.rounds)
    assert accepted > 0.9
