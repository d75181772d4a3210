"""Which tokens of a given text would a draft have guessed? One forward pass over the text answers for all of them."""

from __future__ import annotations

import torch

from breakeven.models.adapter import LayeredModel


@torch.inference_mode()
def exit_matches(
    target: LayeredModel, prompt: list[int], output: list[int], layers: list[int]
) -> dict[int, list[bool]]:
    """Return, for each exit layer, whether the early exit's best token at each output position is the output's.

    Args:
        target: the model.
        prompt: token ids.
        output: token ids that the target wrote.
        layers: exits; each means "after this many layers".

    Returns:
        layer -> list of len(output) booleans.
    """
    tokens = torch.tensor([prompt + output[:-1]], device=target.device)
    cache = target.new_cache(tokens.shape[1])
    hidden = target.embed(tokens, 0)
    truth = torch.tensor(output, device=target.device)
    matches: dict[int, list[bool]] = {}
    done = 0
    for layer in sorted(layers):
        hidden = target.run_layers(hidden, 0, done, layer, cache)
        done = layer
        # Row i predicts token i + 1: the first output token is predicted at the prompt's last position.
        best = target.head(hidden[:, len(prompt) - 1 :])[0].argmax(dim=-1)
        matches[layer] = (best == truth).tolist()
    return matches


def model_matches(draft: LayeredModel, prompt: list[int], output: list[int]) -> list[bool]:
    """Return whether a second model's best token at each output position is the output's: list of len(output)."""
    tokens = torch.tensor([prompt + output[:-1]], device=draft.device)
    logits = draft.forward(tokens, draft.new_cache(tokens.shape[1]))[0]
    best: list[int] = logits[len(prompt) - 1 :].argmax(dim=-1).tolist()
    return [guess == token for guess, token in zip(best, output, strict=True)]
