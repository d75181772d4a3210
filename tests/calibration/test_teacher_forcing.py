"""One pass over a text says what a step-by-step early exit would have guessed."""

from __future__ import annotations

import pytest
import torch

from breakeven.calibration.teacher_forcing import exit_matches, model_matches
from breakeven.models.adapter import LayeredModel
from helpers.drafting import decode
from helpers.models import random_model

PROMPT = [5, 9, 3, 40, 7, 12]


def exit_guess(target: LayeredModel, prefix: list[int], layer: int) -> int:
    """Oracle: run only the first layers over the whole prefix, no cache shared with anything."""
    cache = target.new_cache(len(prefix))
    with torch.inference_mode():
        hidden = target.run_layers(target.embed(torch.tensor([prefix]), 0), 0, 0, layer, cache)
        return int(target.head(hidden)[0, -1].argmax())


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt2"])
def test_exit_matches_are_what_each_exit_alone_would_guess(architecture: str) -> None:
    target = random_model(architecture)
    output = decode(target, None, PROMPT, max_new_tokens=10).tokens
    layers = [1, 2, 3]
    found = exit_matches(target, PROMPT, output, layers)
    for layer in layers:
        expected = [exit_guess(target, PROMPT + output[:j], layer) == output[j] for j in range(len(output))]
        assert found[layer] == expected
    # The last layer is the model itself: it always agrees, so an index shifted by one would show.
    assert exit_matches(target, PROMPT, output, [target.n_layers])[target.n_layers] == [True] * len(output)


def test_a_model_matches_its_own_greedy_text_everywhere_and_another_does_not() -> None:
    target, other = random_model("llama"), random_model("llama", seed=3)
    output = decode(target, None, PROMPT, max_new_tokens=12).tokens
    assert model_matches(target, PROMPT, output) == [True] * 12
    assert not all(model_matches(other, PROMPT, output))
