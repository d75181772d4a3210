"""A second model as drafter: what it is fed, what it reports, whom it is refused to."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from breakeven.drafters import small_lm
from breakeven.drafters.small_lm import Settings, SmallLmDrafter
from breakeven.errors import ConfigError, TokenizerMismatchError
from breakeven.models.adapter import LayeredModel
from breakeven.speculative import loop
from helpers.drafting import decode
from helpers.exact import as_uniforms, law, total_variation
from helpers.models import TableModel, random_model, small_llama, word_tokenizer

PROMPT = [40, 72, 72, 105, 40, 72, 72, 9, 200, 40, 72]


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each call fed to the draft."""
    sizes: list[int] = []
    real = SmallLmDrafter._feed

    def spy(self: SmallLmDrafter, tokens: list[int]) -> torch.Tensor:
        sizes.append(len(tokens))
        return real(self, tokens)

    monkeypatch.setattr(SmallLmDrafter, "_feed", spy)
    return sizes


def test_full_acceptance_feeds_last_draft_token_5765(feeds: list[int]) -> None:
    target = random_model("llama")
    out = decode(target, SmallLmDrafter(target, target), PROMPT, max_new_tokens=13, k=3)
    assert [r.end_reason for r in out.rounds] == ["full"] * 3
    # The prompt; the first new token and two drafts; then the last draft and the bonus at once, and two drafts.
    assert feeds == [len(PROMPT), 1, 1, 1, 2, 1, 1, 2, 1, 1]


def test_rejection_feeds_only_the_recovered_token(feeds: list[int]) -> None:
    target = random_model("llama")
    out = decode(target, SmallLmDrafter(target, random_model("llama", seed=1)), PROMPT, max_new_tokens=9, k=3)
    assert all(r.n_accepted == 0 for r in out.rounds)
    planned = [r.k_planned for r in out.rounds]
    assert planned == [3, 3, 3, 3, 3, 2, 1, 0]
    assert feeds == [len(PROMPT), *[1] * sum(planned)]


def test_acceptance_does_not_decay_with_length_5765() -> None:
    target = random_model("qwen2")
    out = decode(target, SmallLmDrafter(target, target), PROMPT, max_new_tokens=200, k=5, temperature=1.0)
    assert all(r.n_accepted == r.n_drafted for r in out.rounds)
    assert sum(r.n_drafted for r in out.rounds) > 150


def test_a_tokenizer_of_the_same_size_is_refused_by_content() -> None:
    target, draft = small_llama(5), small_llama(5, seed=1)
    draft.tokenizer = other_tokenizer({"0": 0, "1": 1, "2": 2, "4": 3, "3": 4})
    with pytest.raises(TokenizerMismatchError, match="token 3 is '3' in the target and '4' in the draft"):
        SmallLmDrafter(target, draft)


def other_tokenizer(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    state = json.loads(word_tokenizer(len(vocabulary)).backend_tokenizer.to_str())
    state["model"]["vocab"] = vocabulary
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))


def test_the_same_tokenizer_under_another_name_is_taken() -> None:
    target, draft = small_llama(5), small_llama(5, seed=1)
    draft.tokenizer.name_or_path = "elsewhere"
    SmallLmDrafter(target, draft)


@pytest.mark.parametrize(("target_pad", "draft_pad"), [(1, 64), (64, 1), (64, 128), (64, 64)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_rows_of_either_model_are_never_drawn_10913(
    target_pad: int, draft_pad: int, temperature: float
) -> None:
    target = random_model("qwen2", pad=target_pad)
    draft = random_model("qwen2", seed=1, pad=draft_pad)
    n_tokens = len(target.tokenizer)
    assert target.vocab_size == draft.vocab_size == n_tokens
    drafter = SmallLmDrafter(target, draft)
    request = {"max_new_tokens": 60, "k": 3, "temperature": temperature}
    out = decode(target, drafter, PROMPT, **request)
    assert max(out.tokens) < n_tokens
    if temperature == 0:
        assert out.tokens == decode(target, None, PROMPT, **request).tokens
    drafter.begin(PROMPT[:-1], target.new_cache(20))
    drafts = drafter.propose(PROMPT, 3, temperature, [0.2, 0.5, 0.999999])
    assert max(drafts.tokens) < n_tokens
    assert drafts.q is None or drafts.q.shape == (3, n_tokens)


def test_a_draft_with_more_rows_proposes_only_the_targets_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    # Equal tokenizers, but the target's head leaves tokens out (as Gemma 3's text models leave out the image token).
    target, draft = TableModel(2), TableModel(3, n_layers=1, seed=7)
    target.tokenizer = draft.tokenizer
    drafter = SmallLmDrafter(target, draft)

    def run(source):
        monkeypatch.setattr(loop, "uniforms", as_uniforms(source))
        return tuple(decode(target, drafter, [0, 1], max_new_tokens=4, k=2, temperature=1.0).tokens)

    induced = law(run)
    assert set(induced) == set(itertools.product(range(2), repeat=4))
    assert total_variation(induced, target.law([0, 1], 4, 1.0)) < 1e-12


def test_a_draft_with_fewer_rows_is_refused_since_it_could_not_read_on() -> None:
    target, draft = TableModel(3), TableModel(2, n_layers=1)
    draft.tokenizer = target.tokenizer
    with pytest.raises(TokenizerMismatchError, match="knows 2 tokens, table writes 3"):
        SmallLmDrafter(target, draft)


def test_q_is_the_softmax_of_the_drafts_own_logits() -> None:
    target, draft = random_model("llama"), random_model("llama", seed=1)
    drafter = SmallLmDrafter(target, draft)
    drafter.begin(PROMPT[:-1], target.new_cache(64))
    proposal = drafter.propose(PROMPT, 3, 0.7, [0.1, 0.6, 0.9])
    with torch.inference_mode():
        logits = draft.model(torch.tensor([PROMPT + proposal.tokens])).logits[0, len(PROMPT) - 1 : -1]
    assert proposal.q is not None
    torch.testing.assert_close(proposal.q, torch.softmax(logits / 0.7, -1), rtol=0, atol=1e-9)


def test_memory_is_that_of_its_model_and_its_cache() -> None:
    target, draft = random_model("llama"), random_model("llama", layers=2, seed=1)
    drafter = SmallLmDrafter(target, draft)
    assert drafter.nbytes == draft.nbytes
    drafter.begin(PROMPT, target.new_cache(64))
    assert drafter.kv_bytes_per_token == draft.kv_bytes_per_token > 0


def test_target_and_draft_of_different_architectures() -> None:
    target, draft = random_model("gemma3_text"), random_model("gpt2")
    assert isinstance(draft, LayeredModel)
    out = decode(target, SmallLmDrafter(target, draft), PROMPT * 3, max_new_tokens=20, k=3)
    assert out.tokens == decode(target, None, PROMPT * 3, max_new_tokens=20).tokens


def test_settings_without_a_model_say_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.small_lm\.model is empty"):
        Settings()
    with pytest.raises(ConfigError, match="dvc repro download"):
        small_lm.build(random_model("llama"), {"draft_model": "x"}, None)
    assert Settings({"name": "x"}).candidates(30) == [{"draft_model": "x"}]
