"""What every drafter inherits."""

from __future__ import annotations

import pytest
import torch

from breakeven.drafters.base import EMPTY_DRAFT, Drafter
from helpers.drafting import DRAFTERS, Scripted, build
from helpers.models import random_model

PROMPT = [40, 72, 72, 105, 40, 72]


def test_target_logits_are_the_whole_models_behind_the_prompt() -> None:
    target = random_model("gpt2")
    drafter, cache = Scripted(target, lambda tokens, k: []), target.new_cache(16)
    target.forward(torch.tensor([PROMPT[:3]]), cache)
    drafter.begin(PROMPT[:3], cache)
    logits = drafter.target_logits(PROMPT[3:])
    with torch.inference_mode():
        expected = target.model(torch.tensor([PROMPT])).logits[0, 3:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    assert cache.lengths == [6] * 4


def test_defaults_own_nothing() -> None:
    drafter = Scripted(random_model("gpt2"), lambda tokens, k: [])
    assert (drafter.nbytes, drafter.kv_bytes_per_token, drafter.lossless, drafter.samples) == (0, 0, True, False)
    assert drafter.max_context_tokens == drafter.target.max_context_tokens


@pytest.mark.parametrize("name", DRAFTERS)
def test_shipped_drafters_are_lossless_and_say_whether_they_draw(name: str) -> None:
    target = random_model("llama")
    drafter: Drafter = build(name, target, target)
    assert drafter.lossless
    cache = target.new_cache(32)
    target.forward(torch.tensor([PROMPT]), cache)
    drafter.begin(PROMPT, cache)
    proposal = drafter.propose([*PROMPT, 72], 2, 1.0, [0.3, 0.6])
    assert proposal.tokens
    # A drafter that draws reports what it drew from; one that does not is one-hot by declaration.
    assert (proposal.q is not None) == drafter.samples


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_proposed_when_nothing_is_asked_for(name: str, temperature: float) -> None:
    target = random_model("llama")
    drafter = build(name, target, target)
    cache = target.new_cache(32)
    target.forward(torch.tensor([PROMPT]), cache)
    drafter.begin(PROMPT, cache)
    assert drafter.propose([*PROMPT, 72], 0, temperature, []) == EMPTY_DRAFT
