"""The replayed acceptance is that of the real loop, for every drafter."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven.calibration.calibrate import acceptance, write_outputs
from breakeven.errors import ConfigError
from breakeven.speculative.loop import Request, generate
from helpers.drafting import NGRAM, build
from helpers.models import random_model

PROMPTS = [(f"p{i}", [3 + i, 9, 3 + i, 9, 40, 3 + i, 9]) for i in range(5)]
LIMIT = 20
SETTINGS: dict[str, dict[str, Any]] = {"ngram": NGRAM, "early_exit": {"layer": 2}, "small_lm": {"draft_model": "draft"}}


@pytest.mark.parametrize("name", sorted(SETTINGS))
@pytest.mark.parametrize("k", [1, 3, 7])
def test_replayed_tau_is_the_tau_of_the_real_greedy_loop(name: str, k: int) -> None:
    target, draft = random_model("llama"), random_model("llama", layers=2)
    eos = frozenset([2, 11])
    texts = write_outputs(target, PROMPTS, LIMIT, eos, seed=1)
    assert texts, "no calibration prompt was answered"
    record = acceptance(name, [SETTINGS[name]], target, draft, texts, [k, 8], LIMIT)[0]
    rounds = []
    for text in texts:
        request = Request(text.prompt, "p", k, 0.0, LIMIT, eos, 1)
        cache = target.new_cache(len(text.prompt) + LIMIT)
        rounds += generate(target, build(name, target, draft), request, cache).rounds
    assert record["tau_by_k"][str(k)] == pytest.approx(sum(r.n_emitted for r in rounds) / len(rounds))
    histogram = record["drafted_by_k"][str(k)]
    # The loop cuts a draft behind an end of sequence; the replay charges the whole draft that was computed.
    assert sum(histogram.values()) == len(rounds)
    assert sum(int(n) * c for n, c in histogram.items()) >= sum(r.n_drafted for r in rounds)


def test_small_lm_without_its_model_is_refused() -> None:
    target = random_model("llama")
    texts = write_outputs(target, PROMPTS[:1], LIMIT, frozenset(), seed=1)
    with pytest.raises(ConfigError, match="dvc repro download"):
        acceptance("small_lm", [SETTINGS["small_lm"]], target, None, texts, [1], LIMIT)
