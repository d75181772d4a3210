"""Raw samples become ratios that machine drift cannot bend."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from breakeven.config import MeasureConfig
from breakeven.costs.rows import cost_rows, memory_rows, process_peak_bytes
from breakeven.results import CostRow

MEASURE = MeasureConfig(seed=1, trial=0, bootstrap_resamples=200, confidence=0.95)
COLUMNS = ["kind", "drafter", "setting", "layer", "m", "context_tokens", "repeat", "seconds"]


def samples() -> pd.DataFrame:
    rows = []
    for context in (64, 512):
        for repeat in range(9):
            slow = 1.0 + repeat  # the machine gets slower and slower
            rows += [["target", "", "", 0, m, context, repeat, slow * (1.0 if m == 1 else 1.5)] for m in (1, 2)]
            rows.append(["draft", "ngram", "{}", 0, 4, context, repeat, slow * 0.4])
            rows.append(["exit", "early_exit", "", 3, 1, context, repeat, slow * 0.3])
            rows.append(["verify", "early_exit", '{"layer":3}', 0, 2, context, repeat, slow * 1.2])
            rows.append(["overhead", "", "", 0, 2, context, repeat, slow * 0.01])
    return pd.DataFrame(rows, columns=COLUMNS)


def find(rows: list[CostRow], **fields: object) -> CostRow:
    found = [row for row in rows if all(row[key] == value for key, value in fields.items())]  # type: ignore[literal-required]
    assert len(found) == 1, f"{fields}: {len(found)} rows"
    return found[0]


def test_ratios_are_paired_by_round_so_drift_cancels() -> None:
    rows = cost_rows(samples(), MEASURE, model="m", machine="x")
    v = find(rows, quantity="v", m=2, context_tokens=64, drafter=None)
    assert v["value"] == pytest.approx(1.5)
    assert v["value_low"] == pytest.approx(1.5)
    assert v["value_high"] == pytest.approx(1.5)
    step = find(rows, quantity="target_step_s", context_tokens=64)
    assert step["value_low"] < step["value_high"], "the drifting time itself must show its spread"


def test_c_is_per_drafted_token() -> None:
    rows = cost_rows(samples(), MEASURE, model="m", machine="x")
    assert find(rows, quantity="c", drafter="ngram", context_tokens=64)["value"] == pytest.approx(0.1)
    assert find(rows, quantity="c", layer=3, context_tokens=512)["value"] == pytest.approx(0.3)


def test_a_drafter_with_its_own_verification_gets_its_own_v() -> None:
    rows = cost_rows(samples(), MEASURE, model="m", machine="x")
    assert find(rows, quantity="v", drafter="early_exit", context_tokens=64)["value"] == pytest.approx(1.2)


def test_memory_is_exact_and_the_peak_is_at_least_what_is_held() -> None:
    rows = memory_rows({"weights": 10, "kv_per_token": 3}, {"ngram": 0}, model="m", machine="x")
    assert find(rows, part="weights")["value"] == 10
    assert find(rows, part="drafter", drafter="ngram")["value"] == 0
    held = torch.ones(30_000_000)
    assert process_peak_bytes(held.device) >= held.untyped_storage().nbytes()
