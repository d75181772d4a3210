"""The stages capture and kv_error as the pipeline runs them, on a small random model with a sliding window."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from breakeven import config, io
from breakeven.config import Config
from breakeven.errors import BreakevenError, ConfigError
from breakeven.kv import activations
from breakeven.models import loading
from helpers.models import WINDOW, random_model
from helpers.reported import config as valid_config

PIPELINES = Path(__file__).parents[2] / "pipelines"
ASYMMETRIC = {"quantizer": "uniform", "symmetric": False, "group_size": 4}


def stage(name: str) -> None:
    runpy.run_path(str(PIPELINES / f"{name}.py"))["main"]()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    cfg = valid_config(
        capture__texts=2,
        capture__tokens_per_text=24,
        kv_error__bits=[2, 4],
        measure__bootstrap_resamples=200,
    )
    cfg.kv = {"post_symmetric": {"quantizer": "post_symmetric", "group_size": 0}, "asym": ASYMMETRIC}
    target = random_model("gemma3_text", torch.float32)

    def load_target(lock: str, **place: Any) -> tuple[Any, Any]:
        assert place["dtype"] == cfg.capture.dtype  # not the dtype of decoding
        return target, target.tokenizer

    monkeypatch.setattr(config, "load", lambda: cfg)
    monkeypatch.setattr(loading, "load_target", load_target)
    monkeypatch.chdir(tmp_path)
    return cfg


def test_capture_then_kv_error_leave_complete_results(settings: Config) -> None:
    stage("capture")
    meta = activations.load_meta("data/activations")
    n_layers = random_model("gemma3_text", torch.float32).n_layers
    assert meta["n_layers"] == n_layers
    assert set(meta["windows"]) == {WINDOW, None}
    assert len(meta["text_ids"]) == 2
    assert [len(tokens) for tokens in meta["token_ids"]] == [24, 24]
    stage("kv_error")
    table = io.read_parquet("data/kv_error.parquet")
    heads = meta["n_kv_heads"]
    assert len(table) == 2 * n_layers * heads * len(settings.kv) * 2 * len(settings.kv_error.axes)
    assert set(table["layer"]) == set(range(n_layers))
    channels = io.read_parquet("data/kv_channels.parquet")
    assert len(channels) == n_layers * heads * meta["head_dim"] * 3
    rows = io.read_json("reports/metrics/kv_error.json")
    assert len(rows) == (1 + n_layers) * len(settings.kv) * 2 * len(settings.kv_error.axes)
    assert {row["model"] for row in rows} == {meta["model"]}
    by_head = io.read_parquet("data/kv_error_heads.parquet")
    assert len(by_head) == n_layers * heads * len(settings.kv) * 2 * len(settings.kv_error.axes)
    assert by_head["kv_head"].notna().all()
    names = {"activations", "kv_channels.parquet", "kv_error.parquet", "kv_error_heads.parquet"}
    assert {path.name for path in Path("data").iterdir()} == names


def test_the_same_run_gives_the_same_files(settings: Config) -> None:
    stage("capture")
    stage("kv_error")
    names = ("data/kv_error.parquet", "data/kv_channels.parquet", "reports/metrics/kv_error.json")
    first = [io.sha256_file(name) for name in names]
    stage("capture")
    stage("kv_error")
    assert [io.sha256_file(name) for name in names] == first


def test_a_scheme_that_does_not_fit_the_model_is_refused_and_leaves_no_result(settings: Config) -> None:
    stage("capture")
    settings.kv["asym"] = ASYMMETRIC | {"group_size": 3}
    with pytest.raises(ConfigError, match="does not divide head_dim"):
        stage("kv_error")
    assert {path.name for path in Path("data").iterdir()} == {"activations"}
    assert not Path("reports").exists()


def test_without_activations_the_stage_says_what_makes_them(settings: Config) -> None:
    with pytest.raises(BreakevenError, match="dvc repro"):
        stage("kv_error")
