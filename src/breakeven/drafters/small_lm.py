"""A second, smaller model drafts; it keeps its own KV cache.

Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from breakeven.drafters.base import Draft, Drafter
from breakeven.errors import ConfigError, TokenizerMismatchError
from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache
from breakeven.models.tokenizers import require_same_tokenizer
from breakeven.speculative.sampling import draw, probabilities


@dataclass(frozen=True)
class Settings:
    """Keys of conf/drafter/small_lm.yaml."""

    model: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(
                "drafter.small_lm.model is empty. Give it a model: a mapping as in conf/model/ with name, license and "
                "source (see conf/experiment/post_gpt2.yaml), or leave small_lm out of drafter=[...]."
            )

    def candidates(self, n_layers: int) -> list[dict[str, Any]]:
        """Return the settings that calibration chooses from: the one model."""
        return [{"draft_model": str(self.model["name"])}]


class SmallLmDrafter(Drafter):
    """Drafts with `draft`, whose tokenizer must be the target's by content.

    The models' heads may still differ in rows (padding is cut off by `LayeredModel`): what the target has no row for
    is never proposed.

    Raises:
        TokenizerMismatchError: the tokenizers differ, or the draft has no embedding for some of the target's tokens.
    """

    name = "small_lm"
    samples = True

    def __init__(self, target: LayeredModel, draft: LayeredModel) -> None:
        super().__init__(target)
        require_same_tokenizer(target.tokenizer, draft.tokenizer)
        if draft.vocab_size < target.vocab_size:
            raise TokenizerMismatchError(
                f"the draft model {draft.name} knows {draft.vocab_size} tokens, {target.name} writes "
                f"{target.vocab_size}: it could not read on. Choose a draft model of the target's family."
            )
        self.draft = draft

    @property
    def max_context_tokens(self) -> int:
        return min(self.target.max_context_tokens, self.draft.max_context_tokens)

    def begin(self, prompt: list[int], cache: KVCache) -> None:
        super().begin(prompt, cache)
        self._draft_cache = self.draft.new_cache(cache.capacity)
        self._feed(prompt)

    def _feed(self, tokens: list[int]) -> Tensor:
        """Append tokens to the draft's cache; return its last logits, cut to the target's vocabulary [V]."""
        inputs = torch.tensor([tokens], device=self.draft.device)
        return self.draft.forward(inputs, self._draft_cache, last_only=True)[0, -1, : self.target.vocab_size]

    def propose(self, tokens: list[int], k: int, temperature: float, uniforms: list[float]) -> Draft:
        draft: list[int] = []
        q_rows: list[Tensor] = []
        for i in range(k):
            # After a full acceptance two tokens are new to the draft: its own last one was never fed
            # (vLLM #5765: leaving it out lets acceptance decay with length).
            logits = self._feed(tokens[self._draft_cache.length :] if i == 0 else draft[-1:])
            if temperature > 0:
                q_rows.append(probabilities(logits, temperature))
                draft.append(draw(q_rows[-1], uniforms[i]))
            else:
                draft.append(int(logits.argmax()))
        return Draft(draft, torch.stack(q_rows) if q_rows else None)

    def commit(self, n_cached: int) -> None:
        self._draft_cache.crop(n_cached)

    @property
    def nbytes(self) -> int:
        return self.draft.nbytes

    @property
    def kv_bytes_per_token(self) -> int:
        return self.draft.kv_bytes_per_token


def build(target: LayeredModel, setting: dict[str, Any], draft_model: LayeredModel | None) -> Drafter:
    """Build the drafter around the loaded draft model.

    Raises:
        ConfigError: no draft model was loaded.
    """
    if draft_model is None:
        raise ConfigError("drafter.small_lm needs its model in build/models.lock.json. Run `dvc repro download`.")
    return SmallLmDrafter(target, draft_model)
