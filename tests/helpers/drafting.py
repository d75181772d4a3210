"""Drafters of the tests: scripted and hostile ones, and one that inspects the caches after every round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from breakeven.drafters import registry
from breakeven.drafters.base import Draft, Drafter
from breakeven.drafters.small_lm import SmallLmDrafter
from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache
from breakeven.speculative.loop import Generation, Request, Round, generate
from breakeven.speculative.sampling import draw
from breakeven.speculative.verify import Verdict, verify_rejection
from helpers.models import TableModel

DRAFTERS = ("ngram", "early_exit", "small_lm")

TABLE_PROMPT = [0, 1, 2, 3, 0, 1, 2]
PROMPT = [40, 72, 72, 105, 40, 72, 72, 9, 200, 40, 72]

NGRAM = {"max_ngram": 3, "min_ngram": 1, "match": "most_recent"}


def decode(target: LayeredModel, drafter: Drafter | None, prompt: list[int], **changes: Any) -> Generation:
    """Decode with a fresh cache and defaults that a test overrides."""
    fields = {"prompt_id": "p", "k": 4, "temperature": 0.0, "max_new_tokens": 24, "eos_ids": frozenset(), "seed": 1}
    request = Request(prompt=prompt, **(fields | changes))
    return generate(target, drafter, request, target.new_cache(len(prompt) + request.max_new_tokens))


def plain_text(target: LayeredModel, n: int = 12, prompt: list[int] = PROMPT) -> list[int]:
    """Greedy output whose first tokens are distinct, so that a token of it marks one position."""
    return decode(target, None, prompt, max_new_tokens=n).tokens


def counts(rounds: list[Round]) -> list[tuple[int, int, int, str]]:
    """What each round drafted, accepted and emitted, and why it ended."""
    return [(r.n_drafted, r.n_accepted, r.n_emitted, r.end_reason) for r in rounds]


def build(name: str, target: LayeredModel, draft: LayeredModel | None = None) -> Drafter:
    """Build a drafter by name with the tests' settings; early exit leaves halfway."""
    settings: dict[str, dict[str, Any]] = {
        "ngram": NGRAM,
        "early_exit": {"layer": max(1, target.n_layers // 2)},
        "small_lm": {"draft_model": "draft"},
    }
    return registry.build(name, target, settings[name], draft)


def drafter_on_table(name: str | None, target: TableModel) -> Drafter | None:
    """Build a drafter for a table target; small_lm gets another table."""
    return None if name is None else build(name, target, TableModel(target.vocab_size, n_layers=1, seed=7))


def broken_residual(p: Tensor, q: Tensor, draft: list[int], accept: list[float], following: float) -> Verdict:
    """A planted bug: after a rejection, draw from p itself (EAGLE #20)."""
    verdict = verify_rejection(p, q, draft, accept, following)
    if verdict.kind == "recovered":
        return Verdict(verdict.n_accepted, draw(p[verdict.n_accepted], following), "recovered")
    return verdict


class Scripted(Drafter):
    """Proposes what a function of (tokens, k) says."""

    name = "scripted"

    def __init__(self, target: LayeredModel, script: Callable[[list[int], int], list[int]]) -> None:
        super().__init__(target)
        self._script = script

    def propose(self, tokens: list[int], k: int, temperature: float, uniforms: list[float]) -> Draft:
        return Draft(self._script(tokens, k))


def oracle(target: LayeredModel, text: list[int], wrong_at: frozenset[int] = frozenset()) -> Scripted:
    """Propose the continuation that `text` (prompt and output) holds, with wrong tokens at some positions."""

    def script(tokens: list[int], k: int) -> list[int]:
        positions = range(len(tokens), min(len(tokens) + k, len(text)))
        return [(text[i] + (i in wrong_at)) % target.vocab_size for i in positions]

    return Scripted(target, script)


class Inspecting(Drafter):
    """Passes everything on to another drafter; after every round it compares the caches with a fresh prefill."""

    name = "inspecting"

    def __init__(self, inner: Drafter, tolerance: float) -> None:
        super().__init__(inner.target)
        self.inner, self.samples, self._tolerance = inner, inner.samples, tolerance
        self.n_inspected = self.n_full = self.n_partial = 0

    def begin(self, prompt: list[int], cache: KVCache) -> None:
        super().begin(prompt, cache)
        self.inner.begin(prompt, cache)

    def propose(self, tokens: list[int], k: int, temperature: float, uniforms: list[float]) -> Draft:
        self._tokens, self._ctx_len = tokens, len(tokens)  # the loop's own list: it grows in place
        draft = self.inner.propose(tokens, k, temperature, uniforms)
        self._n_drafted = len(draft.tokens)
        return draft

    def target_logits(self, inputs: list[int]) -> Tensor:
        return self.inner.target_logits(inputs)

    def commit(self, n_cached: int) -> None:
        self.inner.commit(n_cached)
        assert n_cached == len(self._tokens) - 1
        assert self.cache.lengths == [n_cached] * self.target.n_layers
        self._compare(self.target, self.cache, n_cached)
        full = len(self._tokens) - self._ctx_len == self._n_drafted + 1 and self._n_drafted > 0
        self.n_inspected += 1
        self.n_full += full
        self.n_partial += not full
        if isinstance(self.inner, SmallLmDrafter) and self._n_drafted:
            # The last draft token of a full acceptance was never fed to the draft: the next round feeds it.
            expected = n_cached - full
            assert self.inner._draft_cache.lengths == [expected] * self.inner.draft.n_layers
            self._compare(self.inner.draft, self.inner._draft_cache, expected)

    def _compare(self, model: LayeredModel, cache: KVCache, n_tokens: int) -> None:
        fresh = model.new_cache(n_tokens)
        model.forward(torch.tensor([self._tokens[:n_tokens]]), fresh)
        for layer in range(model.n_layers):
            for kept, recomputed in zip(cache.layer(layer), fresh.layer(layer), strict=True):
                assert kept.shape == recomputed.shape
                torch.testing.assert_close(kept, recomputed, rtol=self._tolerance, atol=self._tolerance)
