"""What a target step, a verification, a draft and the rest of a round cost on this machine: raw samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pandas as pd
import torch
from torch import Tensor

from breakeven.costs.timing import Probe, interleaved
from breakeven.drafters.base import Drafter
from breakeven.models.adapter import LayeredModel
from breakeven.speculative.loop import Clock
from breakeven.speculative.verify import verify_greedy


@dataclass(frozen=True, order=True)
class Case:
    """What is timed.

    kind: target (a forward pass of m tokens), head (final norm and LM head on m tokens), exit (an early-exit draft
    step that leaves after `layer`), draft (proposing m tokens), verify (the target pass over m tokens of a drafter
    that shares work with the target), overhead (accepting and rolling back a round of m inputs).
    """

    kind: str
    drafter: str
    setting: str
    layer: int
    m: int


class CostBench:
    """Builds probes behind a context of real text (random ids would only meet rarely used embedding rows).

    Args:
        target: the model.
        text: token ids of real prose; repeated where more are needed.
        context_tokens: tokens in the cache before every probe.
        max_m: longest pass.
    """

    def __init__(self, target: LayeredModel, text: list[int], context_tokens: int, max_m: int) -> None:
        self.target, self.context_tokens, self.max_m = target, context_tokens, max_m
        self.clock = Clock(target.device)
        needed = context_tokens + 2 * max_m + 2
        self._text = (text * (needed // len(text) + 1))[:needed]
        self._cache = target.new_cache(needed)
        target.forward(self._tensor(self._text[:context_tokens]), self._cache, last_only=True)

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self.target.device)

    def _next(self, m: int) -> list[int]:
        """Return the m tokens of the text that follow the context."""
        return self._text[self.context_tokens : self.context_tokens + m]

    def _roll_back(self) -> None:
        self._cache.crop(self.context_tokens)

    def base_probes(self, exit_layers: list[int]) -> dict[Case, Probe]:
        """Target passes of 1..max_m tokens, the overhead of such rounds, the head alone, and every exit."""
        probes: dict[Case, Probe] = {}
        for m in range(1, self.max_m + 1):
            probes[Case("target", "", "", 0, m)] = self._forward(m)
            probes[Case("overhead", "", "", 0, m)] = self._overhead(m)
            probes[Case("head", "", "", 0, m)] = self._head(m)
        for layer in exit_layers:
            probes[Case("exit", "early_exit", "", layer, 1)] = self._exit(layer)
        return probes

    def _forward(self, m: int) -> Probe:
        inputs = self._tensor(self._next(m))
        return Probe(lambda: self.target.forward(inputs, self._cache), after=self._roll_back)

    def _head(self, m: int) -> Probe:
        with torch.inference_mode():
            hidden = self.target.embed(self._tensor(self._next(m)), 0)
        return Probe(torch.inference_mode()(lambda: self.target.head(hidden)))

    def _exit(self, layer: int) -> Probe:
        inputs, start = self._tensor(self._next(1)), self.context_tokens

        @torch.inference_mode()
        def run() -> int:
            hidden = self.target.run_layers(self.target.embed(inputs, start), start, 0, layer, self._cache)
            return int(self.target.head(hidden)[0, -1].argmax())

        return Probe(run, after=self._roll_back)

    def _overhead(self, m: int) -> Probe:
        logits = self.target.forward(self._tensor(self._next(m)), self._cache)[0]
        self._roll_back()
        # A round whose whole draft is accepted does the most work.
        draft = logits.argmax(dim=-1).tolist()[:-1]

        def run() -> None:
            verify_greedy(logits, draft)
            self._cache.crop(self.context_tokens)

        return Probe(run)

    def drafter_probes(self, drafter: Drafter, setting: str, ks: list[int]) -> dict[Case, Probe]:
        """Proposing k tokens for every k in `ks`; verifying them too if the drafter does that in its own way."""
        drafter.begin(self._text[: self.context_tokens], self._cache)
        tokens = self._text[: self.context_tokens + 1]
        own_verify = type(drafter).target_logits is not Drafter.target_logits
        probes: dict[Case, Probe] = {}
        for k in ks:
            probes[Case("draft", drafter.name, setting, 0, k)] = self._draft(drafter, tokens, k)
            if own_verify:
                probes[Case("verify", drafter.name, setting, 0, k + 1)] = self._verify(drafter, tokens, k)
        return probes

    def _draft(self, drafter: Drafter, tokens: list[int], k: int) -> Probe:
        def after() -> None:
            self._roll_back()
            drafter.commit(self.context_tokens)

        return Probe(lambda: drafter.propose(tokens, k, 0.0, []), after=after)

    def _verify(self, drafter: Drafter, tokens: list[int], k: int) -> Probe:
        inputs = [tokens[-1], *self._text[-k:]]

        def before() -> None:
            inputs[1:] = drafter.propose(tokens, k, 0.0, []).tokens

        def after() -> None:
            self._roll_back()
            drafter.commit(self.context_tokens)

        return Probe(lambda: drafter.target_logits(inputs), before, after)

    def time(self, probes: Mapping[Case, Probe], *, repeats: int, warmup: int, seed: int) -> pd.DataFrame:
        """Time the probes interleaved; rows kind, drafter, setting, layer, m, context_tokens, repeat, seconds."""
        label = f"costs behind {self.context_tokens} tokens"
        rows = interleaved(probes, repeats=repeats, warmup=warmup, clock=self.clock, seed=seed, label=label)
        columns = [
            {**asdict(case), "context_tokens": self.context_tokens, "repeat": number, "seconds": seconds}
            for case, number, seconds in rows
        ]
        return pd.DataFrame(columns)
