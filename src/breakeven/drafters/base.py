"""What a drafter is: it proposes tokens, says exactly what it drew them from, and can be rolled back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache


@dataclass(frozen=True)
class Draft:
    """Proposed tokens and the distributions they were drawn from.

    `q` is [n, V] float probabilities, or None if the proposal is deterministic (q is one-hot at each token).
    """

    tokens: list[int]
    q: Tensor | None = None


EMPTY_DRAFT = Draft([])


class Drafter(ABC):
    """One request at a time: `begin`, then per round `propose`, `target_logits`, `commit`.

    The loop owns the target's cache and rolls it back; a drafter rolls back only what is its own.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool] = True
    # Whether propose() draws from q at temperature > 0 (else its q is one-hot).
    samples: ClassVar[bool] = False

    def __init__(self, target: LayeredModel) -> None:
        self.target = target

    @property
    def max_context_tokens(self) -> int:
        """Positions that target and drafter both have."""
        return self.target.max_context_tokens

    def begin(self, prompt: list[int], cache: KVCache) -> None:
        """Start a request: forget the last one; `cache` is the target's, already holding the prompt."""
        self.cache = cache

    @abstractmethod
    def propose(self, tokens: list[int], k: int, temperature: float, uniforms: list[float]) -> Draft:
        """Propose up to k tokens that may follow `tokens` (prompt and output so far).

        Args:
            tokens: committed tokens; the last one is not in any cache yet.
            k: at most this many, at least 0.
            temperature: 0 for greedy proposals.
            uniforms: k draws, one a token, if `samples`.
        """

    @torch.inference_mode()
    def target_logits(self, inputs: list[int]) -> Tensor:
        """Run the target on [last token, *draft] behind its cache; return logits [len(inputs), V]."""
        return self.target.forward(torch.tensor([inputs], device=self.target.device), self.cache)[0]

    def commit(self, n_cached: int) -> None:  # noqa: B027 - most drafters hold nothing to roll back
        """Keep only the first n_cached tokens in the drafter's own state (all committed tokens but the last)."""

    @property
    def nbytes(self) -> int:
        """Bytes of weights and tables that only the drafter needs."""
        return 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token adds to the drafter's own cache."""
        return 0
