"""The timing protocol: all cases interleaved in random order, warm-up first, every raw sample kept.

A machine that other people share drifts; measuring case A a hundred times and then case B compares moments, not
cases. Interleaving puts the drift into every case alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tqdm import tqdm

from breakeven.speculative.loop import Clock

Key = TypeVar("Key")


def nothing() -> None:
    """Do nothing: the default preparation and clean-up of a probe."""


@dataclass(frozen=True)
class Probe:
    """Something to time: only `run` is inside the clock."""

    run: Callable[[], object]
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing


def interleaved(
    probes: Mapping[Key, Probe], *, repeats: int, warmup: int, clock: Clock, seed: int, label: str
) -> list[tuple[Key, int, float]]:
    """Time every probe `repeats` times after `warmup` untimed rounds, in a new random order each round.

    Args:
        probes: what to time, by key.
        repeats: timed rounds.
        warmup: untimed rounds first.
        clock: of the device.
        seed: of the order.
        label: for the progress bar.

    Returns:
        (key, round, seconds) rows.
    """
    order = list(probes)
    shuffler = random.Random(seed)  # noqa: S311 - an order, not a secret
    rows: list[tuple[Key, int, float]] = []
    for number in tqdm(range(-warmup, repeats), desc=label, unit="round"):
        shuffler.shuffle(order)
        for key in order:
            probe = probes[key]
            probe.before()
            started = clock()
            probe.run()
            seconds = clock() - started
            probe.after()
            if number >= 0:
                rows.append((key, number, seconds))
    return rows
