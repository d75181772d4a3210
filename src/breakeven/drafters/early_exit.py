"""Self-speculation: the target's first layers and its own head draft, the remaining layers verify.

Source: LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710). The first layers' keys and values are the full model's
own (same weights, same inputs), so draft and target share one cache; the hidden states at the exit are kept, so that
verification runs only the layers behind it. Without LayerSkip's training, agreement is low: that is a result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from breakeven.drafters.base import Draft, Drafter
from breakeven.errors import ConfigError
from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache
from breakeven.speculative.sampling import draw, probabilities


@dataclass(frozen=True)
class Settings:
    """Keys of conf/drafter/early_exit.yaml."""

    layers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(layer < 1 for layer in self.layers):
            raise ConfigError(
                f"drafter.early_exit.layers is {list(self.layers)}. An exit comes after layer 1 or later."
            )

    def candidates(self, n_layers: int) -> list[dict[str, Any]]:
        """Return the settings that calibration chooses from.

        Raises:
            ConfigError: an exit layer is not below the number of layers, or there is only one layer.
        """
        layers = sorted(set(self.layers)) or list(range(1, n_layers))
        if not layers:
            raise ConfigError("drafter.early_exit needs a target of at least 2 layers; this one has 1.")
        if layers[-1] >= n_layers:
            raise ConfigError(f"drafter.early_exit.layers holds {layers[-1]}. Valid: 1 to {n_layers - 1}.")
        return [{"layer": layer} for layer in layers]


class EarlyExitDrafter(Drafter):
    """Leaves after layer `layer`."""

    name = "early_exit"
    samples = True

    def __init__(self, target: LayeredModel, layer: int) -> None:
        super().__init__(target)
        if not 0 < layer < target.n_layers:
            raise ConfigError(f"exit layer {layer} is not valid for {target.name}. Valid: 1 to {target.n_layers - 1}.")
        self.layer = layer

    def begin(self, prompt: list[int], cache: KVCache) -> None:
        super().begin(prompt, cache)
        self._exit_hidden: list[Tensor] = []

    @torch.inference_mode()
    def propose(self, tokens: list[int], k: int, temperature: float, uniforms: list[float]) -> Draft:
        self._exit_hidden = []
        draft: list[int] = []
        q_rows: list[Tensor] = []
        for i in range(k):
            hidden = self._shallow([tokens[-1] if i == 0 else draft[-1]])
            logits = self.target.head(hidden)[0, -1]
            if temperature > 0:
                q_rows.append(probabilities(logits, temperature))
                draft.append(draw(q_rows[-1], uniforms[i]))
            else:
                draft.append(int(logits.argmax()))
        return Draft(draft, torch.stack(q_rows) if q_rows else None)

    def _shallow(self, inputs: list[int]) -> Tensor:
        """Run new inputs through the shared first layers (into the target's cache) and keep the exit states."""
        start = self.cache.lengths[0]
        embedded = self.target.embed(torch.tensor([inputs], device=self.target.device), start)
        hidden = self.target.run_layers(embedded, start, 0, self.layer, self.cache)
        self._exit_hidden.append(hidden)
        return hidden

    @torch.inference_mode()
    def target_logits(self, inputs: list[int]) -> Tensor:
        # The last draft token has not been through the first layers yet; the others have, and so have tokens that
        # the loop cut off behind an end of sequence: the loop's rollback takes those out of the first layers again.
        missing = inputs[len(self._exit_hidden) :]
        if missing:
            self._shallow(missing)
        hidden = torch.cat(self._exit_hidden[: len(inputs)], dim=1)
        start = self.cache.lengths[self.layer]
        hidden = self.target.run_layers(hidden, start, self.layer, self.target.n_layers, self.cache)
        self._exit_hidden = []
        return self.target.head(hidden)[0]


def build(target: LayeredModel, setting: dict[str, Any], draft_model: LayeredModel | None) -> Drafter:
    """Build the drafter from one calibrated setting."""
    return EarlyExitDrafter(target, **setting)
