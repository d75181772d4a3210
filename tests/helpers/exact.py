"""Exact laws of programs that use uniform draws: every branch is taken, with its probability.

A `Uniform` stands for a draw in [0, 1) that is not known yet. Comparing it with a threshold, or looking it up in a
running sum (`torch.searchsorted`), splits the run; each branch keeps the interval that the draw is then known to lie
in, so a draw that serves two decisions makes them dependent, as it does in reality. No sampling is involved: laws are
exact to float64 rounding.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import torch


class Source:
    """Hands out uniform draws and decides the branches of one run."""

    def __init__(self, prefix: list[int]) -> None:
        self._prefix = prefix
        self.taken: list[int] = []
        self.n_options: list[int] = []
        self.weight = 1.0
        self._draws: dict[Hashable, Uniform] = {}

    def uniform(self, name: Hashable) -> Uniform:
        """Return the draw of that name: asking twice gives the same one."""
        return self._draws.setdefault(name, Uniform(_Interval(self)))

    def choose(self, weights: list[float]) -> int:
        """Return an index with positive weight, another one on every run, until all were taken."""
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        step = len(self.taken)
        pick = self._prefix[step] if step < len(self._prefix) else 0
        self.taken.append(pick)
        self.n_options.append(len(possible))
        self.weight *= weights[possible[pick]] / sum(weights)
        return possible[pick]


class _Interval:
    """What is known about a draw: it lies in [low, high)."""

    def __init__(self, source: Source) -> None:
        self.source, self.low, self.high = source, 0.0, 1.0

    def locate(self, edges: list[float]) -> int:
        """Return how many of the ascending edges are at or below the draw."""
        bounds = [0.0, *edges, float("inf")]
        cells = [(max(a, self.low), min(b, self.high)) for a, b in itertools.pairwise(bounds)]
        pick = self.source.choose([max(b - a, 0.0) for a, b in cells])
        self.low, self.high = cells[pick]
        return pick


class Uniform:
    """An undecided draw, times a scale."""

    def __init__(self, interval: _Interval, scale: float = 1.0) -> None:
        self._interval, self._scale = interval, scale

    def __mul__(self, factor: float) -> Uniform:
        return Uniform(self._interval, self._scale * float(factor))

    __rmul__ = __mul__

    def __lt__(self, threshold: float) -> bool:
        if self._scale == 0:
            return threshold > 0
        return self._interval.locate([float(threshold) / self._scale]) == 0

    __le__ = __lt__

    def __ge__(self, threshold: float) -> bool:
        return not self < threshold

    __gt__ = __ge__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        assert func is torch.searchsorted, f"a draw went into {func}"
        assert kwargs == {"right": True}, "side='left' would draw entries of weight 0"
        edges, uniform = args
        return torch.tensor(uniform._interval.locate((edges / uniform._scale).tolist()))


def law(run: Callable[[Source], Hashable]) -> dict[Any, float]:
    """Return the probability of every outcome of `run`, which takes its draws from the source it is given."""
    result: dict[Any, float] = defaultdict(float)
    pending: list[list[int]] = [[]]
    while pending:
        prefix = pending.pop()
        source = Source(prefix)
        outcome = run(source)
        result[outcome] += source.weight
        for step in range(len(prefix), len(source.taken)):
            pending += [[*source.taken[:step], other] for other in range(1, source.n_options[step])]
    return dict(result)


def total_variation(a: dict[Any, float], b: dict[Any, float]) -> float:
    """Return half the sum of absolute differences of two laws."""
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())


def as_uniforms(source: Source) -> Callable[..., list[Uniform]]:
    """Return a stand-in for `breakeven.speculative.sampling.uniforms`: one undecided draw per name and index."""

    def uniforms(seed: int, prompt_id: str, step: int, stream: str, n: int) -> list[Uniform]:
        return [source.uniform((seed, prompt_id, step, stream, i)) for i in range(n)]

    return uniforms
