"""The timing protocol times only what it should, in an order that drift cannot favour."""

from __future__ import annotations

import torch

from breakeven.costs.timing import Probe, interleaved
from breakeven.speculative.loop import Clock


class FakeClock(Clock):
    """A clock that moves only when a probe says so."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_only_run_is_inside_the_clock_and_warm_up_is_not_kept() -> None:
    clock, calls = FakeClock(), []

    def probe(name: str, seconds: float) -> Probe:
        return Probe(
            run=lambda: (calls.append(name), clock.spend(seconds)),
            before=lambda: clock.spend(100.0),
            after=lambda: clock.spend(100.0),
        )

    rows = interleaved(
        {"a": probe("a", 1.0), "b": probe("b", 2.0)}, repeats=4, warmup=2, clock=clock, seed=0, label="test"
    )
    assert sorted({(key, seconds) for key, _, seconds in rows}) == [("a", 1.0), ("b", 2.0)]
    assert len(rows) == 8
    assert len(calls) == 12


def test_probes_are_interleaved_so_that_drift_hits_every_one_alike() -> None:
    clock, order = FakeClock(), []
    probes = {name: Probe(run=lambda name=name: order.append(name)) for name in "abcd"}
    interleaved(probes, repeats=20, warmup=1, clock=clock, seed=0, label="test")
    rounds = ["".join(order[i : i + 4]) for i in range(0, len(order), 4)]
    assert all(sorted(r) == list("abcd") for r in rounds)
    assert len(set(rounds)) > 5, "the order within a round must vary"
