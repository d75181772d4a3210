"""The decoding loop: ends of sequence, lengths and refusals."""

from __future__ import annotations

import pytest

from breakeven.drafters.base import Draft, Drafter
from breakeven.errors import BreakevenError
from breakeven.models.adapter import LayeredModel
from breakeven.speculative.loop import Request, generate
from helpers.drafting import (
    DRAFTERS,
    PROMPT,
    TABLE_PROMPT,
    Scripted,
    build,
    counts,
    decode,
    drafter_on_table,
    oracle,
    plain_text,
)
from helpers.models import CONTEXT, TableModel, random_model


@pytest.fixture(scope="module")
def target() -> LayeredModel:
    return random_model("llama")


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
