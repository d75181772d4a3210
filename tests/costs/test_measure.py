"""Cost probes leave the cache as they found it and cover what the plan needs."""

from __future__ import annotations

import pytest

from breakeven.costs.measure import Case, CostBench
from breakeven.costs.timing import Probe
from helpers.drafting import DRAFTERS, build
from helpers.models import random_model

TEXT = list(range(3, 60))


def bench(context: int = 20, max_m: int = 6) -> CostBench:
    return CostBench(random_model("llama"), TEXT, context, max_m)


def test_every_length_is_timed_and_the_samples_say_what_they_are() -> None:
    found = bench()
    table = found.time(found.base_probes([1, 3]), repeats=2, warmup=1, seed=0)
    assert set(table.columns) == {"kind", "drafter", "setting", "layer", "m", "context_tokens", "repeat", "seconds"}
    for kind in ("target", "overhead", "head"):
        assert sorted(table[table["kind"] == kind]["m"].unique()) == [1, 2, 3, 4, 5, 6]
    assert sorted(table[table["kind"] == "exit"]["layer"].unique()) == [1, 3]
    assert (table["seconds"] > 0).all()


@pytest.mark.parametrize("name", DRAFTERS)
def test_probes_roll_the_cache_back_so_that_every_round_sees_the_same_context(name: str) -> None:
    found = bench()
    drafter = build(name, found.target, random_model("llama", layers=2))
    probes: dict[Case, Probe] = found.base_probes([1]) | found.drafter_probes(drafter, "s", [1, 3])
    for probe in probes.values():
        for _ in range(2):
            probe.before()
            probe.run()
            probe.after()
            assert found._cache.lengths == [20] * found.target.n_layers


def test_only_a_drafter_with_its_own_verification_gets_verify_probes() -> None:
    found = bench()
    kinds = {
        name: {case.kind for case in found.drafter_probes(build(name, found.target, found.target), "s", [2])}
        for name in DRAFTERS
    }
    assert kinds == {"ngram": {"draft"}, "small_lm": {"draft"}, "early_exit": {"draft", "verify"}}


def test_a_context_longer_than_the_text_repeats_it() -> None:
    assert bench(context=100)._cache.length == 100
