"""The guard: everything that can be refused before any work is refused there, with the mend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from breakeven import guard, params
from breakeven.errors import ConfigError, HardwareError
from helpers import workspace


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workspace.conf_only(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_composed_parameters_pass_and_the_answer_is_content_stable(root: Path) -> None:
    params.compose(["experiment=quick"])
    passed = guard.check()
    assert passed == guard.check()
    assert (passed["experiment"], passed["model"], passed["hardware"]) == ("quick", "tiny", "cpu_bf16")
    assert set(passed["drafters"]) == {"ngram", "early_exit"}


def test_an_edit_of_conf_without_composing_is_refused(root: Path) -> None:
    """`dvc repro` never composes: it would run the old parameters and show the new file."""
    params.compose(["experiment=quick"])
    file = root / "conf" / "speculate" / "quick.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("k: [1, 2]", "k: [1, 4]"), encoding="utf-8")
    with pytest.raises(ConfigError, match="make params"):
        guard.check()
    params.compose(["experiment=quick"])
    guard.check()


def test_line_ends_of_another_checkout_are_no_edit(root: Path) -> None:
    params.compose(["experiment=quick"])
    for file in (root / "conf").rglob("*.yaml"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    guard.check()


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("typo", 1, "unknown key `typo`"),
        ("hardware.threds", 3, "unknown key `hardware.threds`.*threads"),
        ("measure.seed", "abc", "measure.seed.*Integer"),
        ("measure.seed", "???", r"no value for measure\.seed"),
        ("drafter.ngram.max_ngrams", 3, "max_ngrams"),
        ("drafter.telepathy", {"k": 1}, "telepathy.*early_exit"),
        ("drafter.zz", 1, r"drafter\.zz"),
        ("kv.uniform_symmetric.quantizer", "nonsense", "nonsense"),
        ("kv.uniform_symmetric.group_sise", 1, "group_sise"),
        ("kv.uniform_symmetric.symmetric", "perhaps", "perhaps|symmetric"),
        ("speculate.k", [0], "speculate.k holds 0"),
        ("hardware.device", "tpu", "tpu.*cpu, cuda, mps"),
    ],
)
def test_what_an_override_smuggles_past_hydra_is_refused(root: Path, key: str, value: object, message: str) -> None:
    """`dvc exp run -S +typo=1` composes happily; params.yaml then holds a key that no stage reads."""
    params.compose(["experiment=quick"])
    written = OmegaConf.load(root / "params.yaml")
    OmegaConf.update(written, key, value, force_add=True)
    OmegaConf.save(written, root / "params.yaml")
    with pytest.raises(ConfigError, match=message):
        guard.check()


def test_absent_hardware_is_refused_before_any_download(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    params.compose(["experiment=quick", "hardware=cuda_h200"])
    with pytest.raises(HardwareError, match="cuda_h200"):
        guard.check()


@pytest.mark.parametrize("content", ["a: [", "- 1\n- 2\n", "", "experiment: quick\n"])
def test_a_broken_or_handmade_params_file_is_refused_with_the_mend(root: Path, content: str) -> None:
    (root / "params.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="make params"):
        guard.check()


def test_a_missing_params_file_is_refused_with_the_mend(root: Path) -> None:
    with pytest.raises(ConfigError, match="missing.*make params"):
        guard.check()
