"""From rows to runs: every metric under its own name, k and bits on the step axis, nothing that was not measured."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests import synthetic

from breakeven import io
from breakeven.tracking import files, projection
from breakeven.tracking.files import ResultFiles
from breakeven.tracking.projection import RunRecord, records


@pytest.fixture
def results(root: Path) -> ResultFiles:
    return files.read(root)


def _run(results: ResultFiles, subject: str) -> RunRecord:
    return next(record for record in records(results) if record.subject == subject)


def _series(record: RunRecord, key: str) -> dict[int, float]:
    return {point.step: point.value for point in record.points if point.key == key}


def test_one_run_per_scheme_and_per_drafter(results: ResultFiles) -> None:
    subjects = Counter((record.kind, record.subject) for record in records(results))
    schemes = {row["scheme"] for row in results.kv_error}
    assert subjects == Counter(
        [("kv", scheme) for scheme in schemes] + [("speculative", "ngram"), ("speculative", "early_exit")]
    )
    assert len(schemes) >= 2


@pytest.mark.parametrize("key", ["alpha", "c", "speedup", "tau"])
def test_k_is_on_the_step_axis_and_every_interval_is_logged(results: ResultFiles, key: str) -> None:
    record = _run(results, "ngram")
    for suffix in ("", "_low", "_high"):
        expected = {
            row["k"]: row[f"{key}{suffix}"]
            for row in sorted(map(dict, results.speculative), key=lambda row: row["calibrated"])
            if row["drafter"] == "ngram" and row["category"] == "all" and row["temperature"] == 0.0
        }
        assert _series(record, f"{key}{suffix}") == pytest.approx(expected)
        assert set(expected) == {1, 2, 4, 8}


def test_the_calibrated_run_speaks_for_its_k(results: ResultFiles) -> None:
    """At the calibrated k both a sweep row (few prompts) and a calibrated row (all prompts) exist."""
    rows = [dict(row) for row in results.speculative]
    for row in rows:
        if row["k"] == 4 and row["drafter"] == "ngram":
            row["speedup"] = 1.5 if row["calibrated"] else 9.9
    changed: Any = rows
    record = _run(dataclasses.replace(results, speculative=changed), "ngram")
    assert _series(record, "speedup")[4] == 1.5
    assert _series(record, "best_speedup") == {0: 1.5}
    assert _series(record, "best_k") == {0: 4.0}
    assert record.params["best_k_from"] == "calibration"


def test_bits_are_on_the_step_axis_and_every_axis_pair_has_its_own_key(results: ResultFiles) -> None:
    record = _run(results, "uniform_symmetric")
    rows = [
        dict(row) for row in results.kv_error
        if row["scheme"] == "uniform_symmetric" and row["layer"] is None and row["kv_head"] is None
    ]  # fmt: skip
    pairs = {(row["k_axis"], row["v_axis"]) for row in rows}
    assert len(pairs) > 1
    for k_axis, v_axis in pairs:
        for suffix in ("", "_low", "_high"):
            expected = {
                row["bits_nominal"]: row[f"attention_error{suffix}"]
                for row in rows
                if (row["k_axis"], row["v_axis"]) == (k_axis, v_axis)
            }
            assert _series(record, f"attention_error{suffix}.k_{k_axis}.v_{v_axis}") == pytest.approx(expected)
    best = (record.params["best_k_axis"], record.params["best_v_axis"])
    assert _series(record, "attention_error") == _series(record, f"attention_error.k_{best[0]}.v_{best[1]}")
    assert set(_series(record, "attention_error")) == {2, 3, 4, 8}


def test_cache_bytes_follow_from_real_bits_and_the_models_shape(results: ResultFiles) -> None:
    target = results.lock["models"]["target"]
    per_side = target["n_layers"] * target["n_kv_heads"] * target["head_dim"]
    record = _run(results, "uniform_symmetric")
    expected = {
        bits: per_side * (k + _series(record, "v_bits_real")[bits]) / 8
        for bits, k in _series(record, "k_bits_real").items()
    }
    assert _series(record, "kv_bytes_per_token") == pytest.approx(expected)
    assert expected[8] < per_side * 2 * 2, "8 bits take less than the 16 of bfloat16"


def test_the_table_shows_each_precision_under_a_name_of_its_own(results: ResultFiles) -> None:
    """MLflow's table shows the last step only: 8 bits for every scheme."""
    record = _run(results, "post_symmetric")
    for bits, value in _series(record, "attention_error").items():
        assert _series(record, f"attention_error_at_{bits}bit") == {0: value}


def test_other_temperatures_and_categories_do_not_mix_with_the_plain_keys(results: ResultFiles) -> None:
    rows = [dict(row) for row in results.speculative]
    for row in rows:
        if row["temperature"] != 0.0:
            row["speedup"] = 77.0
        elif row["category"] != "all":
            row["speedup"] = 55.0
    changed: Any = rows
    record = _run(dataclasses.replace(results, speculative=changed), "early_exit")
    assert set(_series(record, "speedup.T1").values()) == {77.0}
    assert set(_series(record, "speedup.qa").values()) == {55.0}
    assert not {55.0, 77.0} & set(_series(record, "speedup").values())


def test_what_was_not_measured_is_left_out_and_never_zero_or_huge(results: ResultFiles) -> None:
    rows = [dict(row) for row in results.speculative]
    for row in rows:
        row |= {"alpha": None, "alpha_low": None, "alpha_high": None, "predicted_post": math.inf, "c": math.nan}
    changed: Any = rows
    record = _run(dataclasses.replace(results, speculative=changed), "ngram")
    keys = {point.key for point in record.points}
    assert not keys & {"alpha", "alpha_low", "best_alpha", "predicted_post", "c"}
    assert all(math.isfinite(point.value) for point in record.points)


def test_mlflow_accepts_every_name(results: ResultFiles) -> None:
    for record in records(results):
        for name in [point.key for point in record.points] + list(record.params) + list(record.tags):
            assert re.fullmatch(r"[\w. -]{1,250}", name), name
        assert all(isinstance(point.step, int) and point.step >= 0 for point in record.points)
        assert len({(p.key, p.step) for p in record.points}) == len(record.points), "a step is logged once"


def test_verification_cost_and_memory_are_there(results: ResultFiles) -> None:
    record = _run(results, "ngram")
    curves = [key for key in {point.key for point in record.points} if re.fullmatch(r"v\.ctx\d+", key)]
    assert curves
    assert _series(record, curves[0])[1] == pytest.approx(1.0, abs=0.1)
    assert any(point.key.startswith("memory.") for point in record.points)
    assert _series(record, "peak_memory_bytes")
    assert _series(record, "conditional_acceptance")[1] == pytest.approx(0.6)


def test_the_result_id_changes_with_inputs_and_measurement_only(results: ResultFiles) -> None:
    before = {record.subject: record.result_id for record in records(results)}
    assert before == {record.subject: record.result_id for record in records(results)}
    assert len(set(before.values())) == len(before)

    def changed(**fields: Any) -> set[str]:
        after = records(dataclasses.replace(results, **fields))
        return {record.subject for record in after if record.result_id != before[record.subject]}

    speculative = [dict(row) for row in results.speculative]
    speculative[0]["speedup"] = 1.2345
    assert changed(speculative=speculative) == {speculative[0]["drafter"]}
    assert changed(hardware={**results.hardware, "machine": "000000000000"}) == set(before)
    assert changed(parameters={**results.parameters, "speculate.repeats": 2}) == {"ngram", "early_exit"}
    assert changed(parameters={**results.parameters, "kv_error.skip_rows": 2}) == set(before) - {"ngram", "early_exit"}
    assert changed(parameters={**results.parameters, "track.experiment_prefix": "x"}) == set()
    assert changed(parameters={**results.parameters, "meta.conf_digest": "1"}) == set()
    other_weights = {"models": {"target": {**results.lock["models"]["target"], "files": {"a": {"sha256": "0"}}}}}
    assert changed(lock=other_weights) == set(before)


def test_a_drafter_without_prompts_or_a_model_without_shape_is_still_a_run(results: ResultFiles) -> None:
    few = [row for row in results.speculative if row["drafter"] == "ngram" and row["category"] != "all"]
    record = _run(dataclasses.replace(results, speculative=few, lock={}), "ngram")
    assert not _series(record, "best_k")
    assert record.params["machine"] == synthetic.MACHINE
    assert not _series(_run(dataclasses.replace(results, lock={}), "uniform_symmetric"), "kv_bytes_per_token")


def test_artifacts_are_the_files_that_a_reader_and_a_rerun_need(root: Path) -> None:
    io.write_text(root / "dvc.lock", "schema: '2.0'\n")
    found = {(file.name, folder) for file, folder in files.artifacts(root)}
    assert {
        ("params.yaml", None), ("dvc.lock", None), ("models.lock.json", None), ("hardware.json", None),
        ("report.html", None), ("claims.json", None), ("acceptance.svg", "figures"), ("speculative.json", "metrics"),
    } <= found  # fmt: skip
    assert projection.SPECULATIVE == "speculative"
