"""The decoding loop: ends, limits, counts, streams, state between requests, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from breakeven.drafters.base import Draft, Drafter
from breakeven.errors import BreakevenError
from breakeven.models.adapter import LayeredModel
from breakeven.speculative import loop
from breakeven.speculative.loop import Generation, Request, Round, generate
from breakeven.speculative.sampling import probabilities
from helpers.drafting import DRAFTERS, Scripted, build, decode, drafter_on_table, oracle
from helpers.models import CONTEXT, TableModel, random_model

TABLE_PROMPT = [0, 1, 2, 3, 0, 1, 2]


@pytest.fixture(scope="module")
def target() -> LayeredModel:
    return random_model("llama")


PROMPT = [40, 72, 72, 105, 40, 72, 72, 9, 200, 40, 72]


def plain_text(target: LayeredModel, n: int = 12, prompt: list[int] = PROMPT) -> list[int]:
    """Greedy output whose first tokens are distinct, so that a token of it marks one position."""
    return decode(target, None, prompt, max_new_tokens=n).tokens


def counts(rounds: list[Round]) -> list[tuple[int, int, int, str]]:
    return [(r.n_drafted, r.n_accepted, r.n_emitted, r.end_reason) for r in rounds]


# --- end of sequence (transformers #47912, openvino.genai #1951, vLLM #56101) ---


def test_eos_in_the_middle_of_a_draft_ends_there_and_counts_nothing_behind_47912(target: LayeredModel) -> None:
    text = plain_text(target)
    position = 3  # output tokens 1..4 are the first draft: token 3 is inside it, token 4 is behind it
    assert text.index(text[position]) == position
    out = decode(target, oracle(target, PROMPT + text), PROMPT, k=4, eos_ids=frozenset([text[position]]))
    assert out.tokens == text[: position + 1]
    assert out.end_reason == "eos"
    assert counts(out.rounds) == [(3, 3, 3, "eos")]
    assert len(out.margins) == len(out.tokens)
    assert len(out.rounds[0].p_draft) == 3


def test_eos_as_the_last_draft_token_gets_no_bonus(target: LayeredModel) -> None:
    text = plain_text(target)
    out = decode(target, oracle(target, PROMPT + text), PROMPT, k=3, eos_ids=frozenset([text[3]]))
    assert out.tokens == text[:4]
    assert counts(out.rounds) == [(3, 3, 3, "eos")]


def test_eos_as_the_bonus_token_ends_a_full_round(target: LayeredModel) -> None:
    text = plain_text(target)
    out = decode(target, oracle(target, PROMPT + text), PROMPT, k=2, eos_ids=frozenset([text[3]]))
    assert out.tokens == text[:4]
    assert out.end_reason == "eos"
    assert counts(out.rounds) == [(2, 2, 3, "full")]


def test_eos_as_the_recovered_token_ends_a_rejection(target: LayeredModel) -> None:
    text = plain_text(target)
    wrong = frozenset([len(PROMPT) + 3])
    out = decode(target, oracle(target, PROMPT + text, wrong), PROMPT, k=4, eos_ids=frozenset([text[3]]))
    assert out.tokens == text[:4]
    assert out.end_reason == "eos"
    assert counts(out.rounds) == [(4, 2, 3, "reject")]


def test_a_proposed_eos_that_the_target_rejects_ends_nothing(target: LayeredModel) -> None:
    text = plain_text(target)
    eos = next(token for token in range(target.vocab_size) if token not in text)
    drafter = Scripted(target, lambda tokens, k: [text[len(tokens) - len(PROMPT)], *[eos] * (k - 1)][:k])
    out = decode(target, drafter, PROMPT, k=3, max_new_tokens=12, eos_ids=frozenset([eos]))
    assert out.tokens == text
    assert out.end_reason == "max_len"
    # Drafts behind the proposed EOS could never be emitted: they are not counted.
    assert all(r.n_drafted <= 2 for r in out.rounds)


def test_eos_straight_from_the_prefill_needs_no_round(target: LayeredModel) -> None:
    text = plain_text(target)
    for drafter in (None, build("ngram", target), build("early_exit", target), build("small_lm", target, target)):
        out = decode(target, drafter, PROMPT, eos_ids=frozenset([text[0]]))
        assert (out.tokens, out.end_reason, out.rounds) == (text[:1], "eos", [])


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("position", [1, 2, 3, 5])
def test_every_drafter_stops_at_eos_where_plain_decoding_does(target: LayeredModel, name: str, position: int) -> None:
    text = plain_text(target)
    assert text.index(text[position]) == position
    eos = frozenset([text[position]])
    plain = decode(target, None, PROMPT, max_new_tokens=12, eos_ids=eos)
    # small_lm with the target's own weights drafts past the end of sequence every time.
    drafter = build(name, target, target)
    out = decode(target, drafter, PROMPT, max_new_tokens=12, k=5, eos_ids=eos)
    assert out.tokens == plain.tokens == text[: position + 1]
    assert out.end_reason == plain.end_reason == "eos"


def test_early_exit_whose_draft_is_cut_at_eos_runs_only_what_is_left(target: LayeredModel) -> None:
    drafter = build("early_exit", target)
    proposed: list[list[int]] = []

    def first_draft(tokens, k, temperature, uniforms):
        proposed.append(type(drafter).propose(drafter, tokens, k, temperature, uniforms).tokens)
        return Draft(proposed[-1])

    drafter.propose = first_draft  # type: ignore[method-assign]
    decode(target, drafter, PROMPT, max_new_tokens=7, k=5)
    eos = frozenset([proposed[0][1]])  # as if the second of five drafted tokens ended the sequence
    out = decode(target, build("early_exit", target), PROMPT, max_new_tokens=12, k=5, eos_ids=eos)
    plain = decode(target, None, PROMPT, max_new_tokens=12, eos_ids=eos)
    assert out.rounds[0].n_drafted <= 2
    assert out.tokens == plain.tokens


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_no_eos_means_no_early_end_46790(target: LayeredModel, name: str | None) -> None:
    drafter = None if name is None else build(name, target, target)
    out = decode(target, drafter, PROMPT, max_new_tokens=12, eos_ids=frozenset())
    assert len(out.tokens) == 12
    assert out.end_reason == "max_len"


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_token_0_is_a_token_like_any_other(name: str | None) -> None:
    # SmolLM2's end of sequence has id 0: truthiness tests (`if token:`) drop it.
    target = TableModel(4, seed=1)
    out = decode(target, drafter_on_table(name, target), TABLE_PROMPT, max_new_tokens=60, temperature=1.0)
    assert len(out.tokens) == 60
    assert out.tokens.count(0) > 5
    greedy = decode(target, drafter_on_table(name, target), [0], max_new_tokens=60, temperature=1.0)
    assert len(greedy.tokens) == 60


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_token_0_as_end_of_sequence_ends(name: str | None) -> None:
    target = TableModel(4, seed=1)
    for i in range(20):
        drafter = drafter_on_table(name, target)
        out = decode(
            target, drafter, TABLE_PROMPT, max_new_tokens=60, temperature=1.0, eos_ids=frozenset([0]), prompt_id=f"{i}"
        )
        assert out.end_reason == "eos"
        assert out.tokens.index(0) == len(out.tokens) - 1


# --- lengths (transformers #46993, #47195) ---


@pytest.mark.parametrize("name", [None, *DRAFTERS, "oracle"])
@pytest.mark.parametrize("n_new", [1, 2, 3, 4, 5, 9])
def test_max_new_tokens_is_never_exceeded_46993(target: LayeredModel, name: str | None, n_new: int) -> None:
    text = plain_text(target)
    if name == "oracle":
        drafter: Drafter | None = oracle(target, PROMPT + text)
    else:
        drafter = None if name is None else build(name, target, target)
    out = decode(target, drafter, PROMPT, max_new_tokens=n_new, k=8)
    assert out.tokens == text[:n_new]
    assert len(out.margins) == n_new
    assert (len(out.rounds) == 0) == (n_new == 1)


def test_k_larger_than_what_is_left_is_cut_to_leave_room_for_the_bonus(target: LayeredModel) -> None:
    text = plain_text(target)
    out = decode(target, oracle(target, PROMPT + text), PROMPT, max_new_tokens=9, k=4)
    # 8 tokens behind the first: a full round of 5, then 3 with the draft cut to 2.
    assert [(r.k_planned, *counts([r])[0]) for r in out.rounds] == [(4, 4, 4, 5, "full"), (2, 2, 2, 3, "full")]
    last = decode(target, oracle(target, PROMPT + text), PROMPT, max_new_tokens=7, k=4).rounds[-1]
    assert (last.k_planned, last.n_drafted, last.n_emitted, last.end_reason) == (0, 0, 1, "no_draft")


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_a_prompt_of_one_token(target: LayeredModel, name: str | None) -> None:
    drafter = None if name is None else build(name, target, target)
    out = decode(target, drafter, [7], max_new_tokens=10, k=3)
    assert out.tokens == plain_text(target, 10, prompt=[7])


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_prompt_and_output_may_fill_the_context_exactly(target: LayeredModel, name: str | None) -> None:
    prompt = (PROMPT * 30)[: CONTEXT - 6]
    drafter = None if name is None else build(name, target, target)
    out = decode(target, drafter, prompt, max_new_tokens=6, k=4)
    assert out.tokens == plain_text(target, 6, prompt=prompt)


@pytest.mark.parametrize(
    ("changes", "capacity", "message"),
    [
        ({"prompt": PROMPT * 30}, 400, r"p has 330 tokens.*room for 256.*max_new_tokens"),
        ({"prompt": PROMPT * 20}, 100, r"room for 100.*hardware.max_context_tokens"),
        ({"max_new_tokens": CONTEXT}, 400, "room for 256"),
        ({"k": 0}, 100, "k is 0"),
        ({"k": -1}, 100, "k is -1"),
        ({"k": CONTEXT}, 400, "k is 256 and the context holds 256"),
        ({"prompt": []}, 100, "empty"),
        ({"max_new_tokens": 0}, 100, "max_new_tokens is 0"),
    ],
)
def test_impossible_requests_are_refused_before_any_work(
    target: LayeredModel, changes: dict, capacity: int, message: str
) -> None:
    fields = {"prompt": PROMPT, "prompt_id": "p", "k": 2, "temperature": 0.0, "max_new_tokens": 5, "seed": 0}
    request = Request(**(fields | {"eos_ids": frozenset()} | changes))
    cache = target.new_cache(capacity)
    cache.lengths = [3] * target.n_layers
    with pytest.raises(BreakevenError, match=message):
        generate(target, build("ngram", target), request, cache)
    assert cache.lengths == [3] * target.n_layers


def test_k_does_not_matter_without_a_drafter(target: LayeredModel) -> None:
    assert decode(target, None, PROMPT, k=0, max_new_tokens=5).tokens == plain_text(target, 5)


def test_a_draft_models_shorter_context_is_the_limit(target: LayeredModel) -> None:
    short = LayeredModel(target.model, target.tokenizer, "short")
    short.max_context_tokens = 20
    with pytest.raises(BreakevenError, match="room for 20"):
        decode(target, build("small_lm", target, short), PROMPT, max_new_tokens=12)
    assert len(decode(target, build("small_lm", target, short), PROMPT, max_new_tokens=9).tokens) == 9


def test_a_drafter_that_proposes_more_than_k_is_a_bug_that_says_so(target: LayeredModel) -> None:
    greedy = Scripted(target, lambda _, k: [1] * (k + 1))
    with pytest.raises(ValueError, match="scripted proposed 5 tokens, 4 were asked for"):
        decode(target, greedy, PROMPT, k=4)


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
