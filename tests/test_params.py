"""Composition: a refusal lists the valid choices and leaves the old params.yaml as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from dvc.utils.hydra import compose_and_dump
from omegaconf import OmegaConf

from breakeven import config, io, params
from breakeven.errors import BreakevenError, ConfigError
from helpers import workspace

EXPERIMENTS = sorted(file.stem for file in (workspace.REPOSITORY / "conf" / "experiment").glob("*.yaml"))
OPTIONS = sorted(
    f"{file.parent.name}={file.stem}"
    for file in (workspace.REPOSITORY / "conf").glob("*/*.yaml")
    if file.parent.name in {"hardware", "model", "speculate", "kv", "experiment"}
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workspace.conf_only(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_options_to_compose() -> None:
    assert {"quick", "default", "full", "post_gpt2", "post_qwen"} <= set(EXPERIMENTS)
    assert len(OPTIONS) > 20


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_in_conf_composes_and_passes(root: Path, option: str) -> None:
    text, composed = params.composed([option])
    assert "???" not in text
    assert "${" not in text
    assert composed.meta.conf_digest


def test_the_file_is_what_dvc_itself_would_write(root: Path) -> None:
    """`dvc exp run` composes on every call; another text would make it re-run stages for nothing."""
    params.compose(["experiment=quick", "speculate.k=[1,2]"])
    compose_and_dump(
        str(root / "dvc.params.yaml"),
        str(root / "conf"),
        None,
        "config",
        str(root),
        ["experiment=quick", "speculate.k=[1,2]"],
    )
    assert (root / "params.yaml").read_bytes() == (root / "dvc.params.yaml").read_bytes()


def test_composition_is_reproducible_and_readable_by_stages(root: Path) -> None:
    composed = params.compose(["experiment=quick"])
    first = (root / "params.yaml").read_bytes()
    params.compose(["experiment=quick"])
    assert (root / "params.yaml").read_bytes() == first
    assert config.load("params.yaml") == composed


@pytest.mark.parametrize(
    "override, message",
    [
        ("experiment=nope", "experiment has no option 'nope'. Valid: .*default.*quick"),
        ("model=gpt5", "model has no option 'gpt5'. Valid: .*smollm2_135m"),
        ("hardware=h100", "hardware has no option 'h100'. Valid: .*cuda_h200"),
        ("kv=[nope]", "kv has no option 'nope'. Valid: .*post_symmetric"),
        ("experimnt=quick", "unknown key `experimnt`.*Groups: drafter, experiment"),
        ("model.nme=x", "unknown key `model.nme`.*license, name, source"),
        ("+typo=1", "unknown key `typo`"),
        ("+hardware.threds=3", "unknown key `hardware.threds`.*threads"),
        ("+drafter.zz=1", "drafter.zz"),
        ("kv.post_symmetric.group_sise=3", "group_sise.*group_size"),
        ("measure.seed=abc", "measure.seed.*Integer"),
        ("measure.seed=???", r"no value for measure.seed"),
        ("speculate.k=7", "speculate.k"),
        ("speculate.k=[0]", "speculate.k holds 0"),
        ("speculate.k=[100000]", "speculate.k holds 100000"),
        ("speculate.k=[1", "cannot read the override"),
        ("nonsense", "cannot read the override"),
        ("speculate.k=[1],[2]", "breakeven sweep -m"),
        ("measure.seed=1,2", "breakeven sweep -m"),
        ("drafter=[]", "drafter is empty"),
        ("hardware=null", "group override"),
        ("~measure", "no value for measure"),
        ("workload.categories=[]", "workload.categories is empty"),
    ],
)
def test_a_refusal_names_the_valid_choices_and_keeps_the_old_file(root: Path, override: str, message: str) -> None:
    params.compose(["experiment=quick"])
    before = (root / "params.yaml").read_bytes()
    with pytest.raises(ConfigError, match=message):
        params.compose([override])
    assert (root / "params.yaml").read_bytes() == before
    assert sorted(entry.name for entry in root.iterdir()) == ["conf", "dvc.yaml", "params.yaml"]


def test_a_full_disk_keeps_the_old_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params.compose(["experiment=quick"])
    before = (root / "params.yaml").read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(BreakevenError, match="No space left"):
        params.compose(["experiment=default"])
    assert (root / "params.yaml").read_bytes() == before


def test_differences_name_the_keys_that_were_edited_by_hand(root: Path) -> None:
    params.compose(["experiment=quick"])
    assert params.differences(["experiment=quick"]) == []
    written = OmegaConf.load(root / "params.yaml")
    written.speculate.max_new_tokens = 13
    written.drafter.pop("ngram")
    OmegaConf.save(written, root / "params.yaml")
    found = params.differences(["experiment=quick"])
    assert "speculate.max_new_tokens" in found
    assert all(key.startswith(("speculate.max_new_tokens", "drafter.ngram.")) for key in found)
    io.write_text(root / "params.yaml", "")
    assert "model.name" in params.differences([])
    (root / "params.yaml").unlink()
    with pytest.raises(ConfigError, match="make params"):
        params.differences([])


def test_outside_a_repository_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BreakevenError, match="not inside a Breakeven repository"):
        params.compose([])
