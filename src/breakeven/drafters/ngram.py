"""Prompt lookup: propose what followed the last n tokens when they last occurred.

Source: Saxena, "Prompt Lookup Decoding" (2023); Transformers calls it `prompt_lookup_num_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from breakeven.drafters.base import EMPTY_DRAFT, Draft, Drafter
from breakeven.errors import ConfigError
from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache

MATCHES = ("most_recent", "leftmost")


@dataclass(frozen=True)
class Settings:
    """Keys of conf/drafter/ngram.yaml."""

    max_ngram: list[int] = field(default_factory=lambda: [3])
    min_ngram: int = 1
    match: str = "most_recent"

    def __post_init__(self) -> None:
        if not self.max_ngram or min(self.max_ngram) < self.min_ngram or self.min_ngram < 1:
            raise ConfigError(
                f"drafter.ngram: max_ngram {list(self.max_ngram)} must name lengths of at least min_ngram "
                f"({self.min_ngram}), and min_ngram must be at least 1."
            )
        if self.match not in MATCHES:
            raise ConfigError(f"drafter.ngram.match is {self.match!r}. Valid: {', '.join(MATCHES)}.")

    def candidates(self, n_layers: int) -> list[dict[str, Any]]:
        """Return the settings that calibration chooses from."""
        return [{"max_ngram": n, "min_ngram": self.min_ngram, "match": self.match} for n in sorted(set(self.max_ngram))]


class NgramDrafter(Drafter):
    """Looks up the longest suffix of max_ngram..min_ngram tokens in an index that grows with the text: O(1) a token."""

    name = "ngram"

    def __init__(self, target: LayeredModel, max_ngram: int, min_ngram: int, match: str) -> None:
        super().__init__(target)
        self.max_ngram, self.min_ngram, self.match = max_ngram, min_ngram, match

    def begin(self, prompt: list[int], cache: KVCache) -> None:
        super().begin(prompt, cache)
        # n-gram -> index of the token that followed it
        self._following: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, tokens: list[int], k: int, temperature: float, uniforms: list[float]) -> Draft:
        self._index(tokens)
        for n in range(min(self.max_ngram, len(tokens) - 1), self.min_ngram - 1, -1):
            start = self._following.get(tuple(tokens[-n:]))
            if start is not None and k > 0:
                return Draft(tokens[start : start + k])
        return EMPTY_DRAFT

    def _index(self, tokens: list[int]) -> None:
        """Index every n-gram that has a following token. Committed tokens never change, so nothing rolls back."""
        for follower in range(max(self._indexed, 1), len(tokens)):
            for n in range(self.min_ngram, min(self.max_ngram, follower) + 1):
                ngram = tuple(tokens[follower - n : follower])
                if self.match == "most_recent":
                    self._following[ngram] = follower
                else:
                    self._following.setdefault(ngram, follower)
        self._indexed = len(tokens)


def build(target: LayeredModel, setting: dict[str, Any], draft_model: LayeredModel | None) -> Drafter:
    """Build the drafter from one calibrated setting."""
    return NgramDrafter(target, **setting)
