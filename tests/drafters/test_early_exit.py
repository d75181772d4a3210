"""Early exit: its drafts against Transformers' hidden states, and who runs which layer how often."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from breakeven.drafters.early_exit import EarlyExitDrafter, Settings
from breakeven.errors import ConfigError
from breakeven.models.adapter import LayeredModel
from breakeven.speculative.sampling import draw
from helpers.drafting import decode
from helpers.models import ARCHITECTURES, random_model

PROMPT = [40, 72, 72, 105, 40, 72, 72, 9, 200, 40, 72]


def exit_logits(target: LayeredModel, tokens: list[int], layer: int) -> torch.Tensor:
    """Logits behind one layer, [V], by Transformers' own hidden states."""
    with torch.inference_mode():
        states = target.model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
        return target.head(states[layer])[0, -1]


def prefilled(target: LayeredModel, layer: int) -> EarlyExitDrafter:
    cache = target.new_cache(64)
    target.forward(torch.tensor([PROMPT[:-1]]), cache)
    drafter = EarlyExitDrafter(target, layer)
    drafter.begin(PROMPT[:-1], cache)
    return drafter


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_draft_is_the_argmax_behind_the_exit_layer(architecture: str, layer: int) -> None:
    target = random_model(architecture)
    draft = prefilled(target, layer).propose(PROMPT, 4, 0.0, [])
    text = list(PROMPT)
    for token in draft.tokens:
        assert token == int(exit_logits(target, text, layer).argmax())
        text.append(token)
    assert len(draft.tokens) == 4
    assert draft.q is None


def test_sampled_draft_reports_the_law_that_it_drew_from_32867() -> None:
    target, layer, temperature = random_model("llama"), 2, 0.7
    uniforms = [0.1, 0.5, 0.9]
    draft = prefilled(target, layer).propose(PROMPT, 3, temperature, uniforms)
    assert draft.q is not None
    assert draft.q.shape == (3, target.vocab_size)
    text = list(PROMPT)
    for row, token, uniform in zip(draft.q, draft.tokens, uniforms, strict=True):
        expected = torch.softmax(exit_logits(target, text, layer) / temperature, dim=-1)
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-9)
        assert token == draw(row, uniform)
        text.append(token)


@pytest.mark.parametrize("n_kept", [0, 1, 2, 3])
def test_target_logits_are_the_whole_models_also_for_a_draft_cut_short(n_kept: int) -> None:
    # The loop cuts drafts behind an end of sequence: fewer inputs than exit states.
    target = random_model("gemma3_text")
    drafter = prefilled(target, 2)
    draft = drafter.propose(PROMPT, 3, 0.0, []).tokens[:n_kept]
    logits = drafter.target_logits([PROMPT[-1], *draft])
    with torch.inference_mode():
        expected = target.model(torch.tensor([PROMPT + draft])).logits[0, len(PROMPT) - 1 :]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    assert drafter.cache.lengths[2:] == [len(PROMPT) + n_kept] * 2
    # The first layers run again only for the last draft token, which they have not seen.
    assert drafter.cache.lengths[:2] == [len(PROMPT) + max(n_kept, 2)] * 2


def test_every_layer_runs_once_for_every_token_of_a_full_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    # Verification runs only the layers behind the exit: running the first ones again would charge them twice.
    target = random_model("llama")
    runs: Counter[int] = Counter()
    real = LayeredModel.run_layers

    def spy(self, hidden, start, first, last, cache):
        runs.update(dict.fromkeys(range(first, last), hidden.shape[1]))
        return real(self, hidden, start, first, last, cache)

    monkeypatch.setattr(LayeredModel, "run_layers", spy)
    drafter = prefilled(target, 2)
    runs.clear()
    draft = drafter.propose(PROMPT, 3, 0.0, []).tokens
    assert runs == {0: 3, 1: 3}
    drafter.target_logits([PROMPT[-1], *draft])
    assert runs == {0: 4, 1: 4, 2: 4, 3: 4}


def test_without_a_draft_it_is_an_ordinary_step() -> None:
    target = random_model("qwen3")
    drafter = prefilled(target, 1)
    assert drafter.propose(PROMPT, 0, 0.0, []).tokens == []
    logits = drafter.target_logits(PROMPT[-1:])
    with torch.inference_mode():
        torch.testing.assert_close(logits[0], target.model(torch.tensor([PROMPT])).logits[0, -1], rtol=0, atol=1e-9)


def test_it_owns_no_memory() -> None:
    drafter = EarlyExitDrafter(random_model("llama"), 2)
    assert drafter.nbytes == drafter.kv_bytes_per_token == 0


@pytest.mark.parametrize("layer", [-1, 0, 4, 5])
def test_an_exit_outside_the_model_is_refused(layer: int) -> None:
    with pytest.raises(ConfigError, match="Valid: 1 to 3"):
        EarlyExitDrafter(random_model("llama"), layer)


def test_candidates() -> None:
    assert Settings().candidates(4) == [{"layer": 1}, {"layer": 2}, {"layer": 3}]
    assert Settings([3, 1, 3]).candidates(4) == [{"layer": 1}, {"layer": 3}]
    with pytest.raises(ConfigError, match="Valid: 1 to 3"):
        Settings([4]).candidates(4)
    with pytest.raises(ConfigError, match="at least 2 layers"):
        Settings().candidates(1)
    with pytest.raises(ConfigError, match="layer 1 or later"):
        Settings([0])


def test_states_of_the_last_request_are_forgotten() -> None:
    target = random_model("llama")
    drafter = EarlyExitDrafter(target, 2)
    expected = decode(target, drafter, PROMPT, max_new_tokens=8).tokens
    drafter.cache.crop(len(PROMPT) - 1)
    drafter.propose(PROMPT, 3, 0.0, [])  # left in the middle of a round
    assert decode(target, drafter, PROMPT, max_new_tokens=8).tokens == expected


def test_a_proposal_that_was_never_verified_is_forgotten() -> None:
    # Timing the draft alone proposes without verifying.
    target = random_model("llama")
    drafter = prefilled(target, 2)
    drafter.propose(PROMPT, 3, 0.0, [])
    drafter.cache.crop(len(PROMPT) - 1)
    text = [*PROMPT[:-1], 9]
    draft = drafter.propose(text, 2, 0.0, []).tokens
    logits = drafter.target_logits([text[-1], *draft])
    with torch.inference_mode():
        expected = target.model(torch.tensor([text + draft])).logits[0, len(text) - 1 :]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
