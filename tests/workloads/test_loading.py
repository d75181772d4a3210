"""Traps of a workload: measuring what calibration saw, a category that vanishes, a file that changes between stages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.config import WorkloadConfig
from breakeven.errors import BreakevenError, ConfigError, DownloadError
from breakeven.workloads import CATEGORIES, load_prompts, to_prompts

BUILTIN = WorkloadConfig("builtin", "builtin", None, None, list(CATEGORIES), 4)


def spec_bench(tmp_path: Path, questions: list[dict[str, object]], **changes) -> tuple[WorkloadConfig, Path]:
    """Write a question file and a lock that records it."""
    file, lock = tmp_path / "question.jsonl", tmp_path / "models.lock.json"
    file.write_text("".join(json.dumps(q) + "\n" for q in questions), encoding="utf-8")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    lock.write_text(json.dumps({"workload": {"path": "question.jsonl", "sha256": digest}}))
    config = WorkloadConfig("mine", "spec_bench", str(file), None, ["qa"], 1)
    return dataclasses.replace(config, **changes), lock


def questions(n: int, category: str = "qa") -> list[dict[str, object]]:
    return [{"question_id": i, "category": category, "turns": [f"question {i}"]} for i in range(n)]


def test_it_is_a_dataset_with_the_four_columns():
    prompts = load_prompts(BUILTIN)
    assert isinstance(prompts, datasets.Dataset)
    assert prompts.column_names == ["id", "category", "text", "split"]
    assert len(prompts) == 84


@given(st.integers(1, 11), st.lists(st.sampled_from(CATEGORIES), min_size=1, unique=True))
def test_no_prompt_is_both_calibrated_on_and_measured(n_calibration, categories):
    workload = dataclasses.replace(BUILTIN, categories=categories, calibration_prompts_per_category=n_calibration)
    prompts = load_prompts(workload)
    calibration = to_prompts(prompts, "calibration", n_calibration)
    measured = to_prompts(prompts, "measured", 12 - n_calibration)
    assert not {p.id for p in calibration} & {p.id for p in measured}
    assert not {p.text for p in calibration} & {p.text for p in measured}
    assert len(calibration) + len(measured) == len(prompts) == 12 * len(categories)
    for found, count in ((calibration, n_calibration), (measured, 12 - n_calibration)):
        assert Counter(p.category for p in found) == dict.fromkeys(categories, count)


def test_the_same_configuration_gives_the_same_prompts_in_the_same_order():
    assert load_prompts(BUILTIN).to_list() == load_prompts(BUILTIN).to_list()
    first = load_prompts(BUILTIN)["category"]
    assert list(dict.fromkeys(first)) == list(CATEGORIES)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"kind": "poems"}, "workload.kind is 'poems'. Valid: builtin, spec_bench, human_eval"),
        ({"categories": ["qa", "poems"]}, "unknown category 'poems'. Valid: multi_turn, .*code"),
        ({"categories": []}, "categories is empty"),
        ({"categories": ["qa", "qa"]}, "names a category twice"),
        ({"calibration_prompts_per_category": 12}, "none would be left to measure. Set it to at most 11"),
    ],
)
def test_impossible_workload_is_refused(changes, reason):
    with pytest.raises(ConfigError, match=reason):
        load_prompts(dataclasses.replace(BUILTIN, **changes))


def test_empty_file_is_refused(tmp_path):
    workload, lock = spec_bench(tmp_path, [])
    with pytest.raises(BreakevenError, match="mine holds no prompt"):
        load_prompts(workload, lock)


def test_category_that_the_file_lacks_is_refused_with_those_it_has(tmp_path):
    workload, lock = spec_bench(tmp_path, questions(3), categories=["qa", "code"])
    with pytest.raises(ConfigError, match="no prompt of category 'code'. It has: qa"):
        load_prompts(workload, lock)


def test_duplicate_ids_are_refused(tmp_path):
    workload, lock = spec_bench(tmp_path, [*questions(3), *questions(1)])
    with pytest.raises(BreakevenError, match="ids more than once: spec_bench-0"):
        load_prompts(workload, lock)


def test_file_that_changed_since_the_download_stage_is_refused(tmp_path):
    workload, lock = spec_bench(tmp_path, questions(3))
    assert len(load_prompts(workload, lock)) == 3
    with Path(str(workload.path)).open("a") as file:
        file.write(json.dumps(questions(9)[8]) + "\n")
    with pytest.raises(BreakevenError, match="is not the file that .* records. Run `dvc repro download`"):
        load_prompts(workload, lock)


def test_lock_of_another_workload_is_refused(tmp_path):
    workload, lock = spec_bench(tmp_path, questions(3))
    lock.write_text('{"workload": null}')
    with pytest.raises(BreakevenError, match="is not the file"):
        load_prompts(workload, lock)


def test_missing_file_is_refused(tmp_path):
    workload, lock = spec_bench(tmp_path, questions(3))
    Path(str(workload.path)).unlink()
    with pytest.raises(DownloadError, match="is not there"):
        load_prompts(workload, lock)
