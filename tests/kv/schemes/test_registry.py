"""Schemes by name: every conf file builds, and everything that could be ignored silently is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from breakeven.errors import ConfigError
from breakeven.kv.schemes import registry

CONF = Path(__file__).parents[3] / "conf" / "kv"
FILES = sorted(CONF.glob("*.yaml"))


def test_there_are_conf_files_and_quantizers() -> None:
    assert {"post_symmetric", "uniform_symmetric", "uniform_asymmetric"} <= {path.stem for path in FILES}
    assert {"post_symmetric", "uniform"} <= set(registry.names())
    assert not {"base", "registry"} & set(registry.names())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_conf_file_builds_a_scheme_that_quantizes(path: Path) -> None:
    settings = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(settings, dict)
    given = {str(key): value for key, value in settings.items()}
    scheme = registry.build(path.stem, given)
    assert scheme.name == path.stem
    assert scheme.group_size == given["group_size"]
    x = torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(0))
    for axis in ("token", "channel"):
        quantized = scheme.quantize(x, 4, axis)
        assert quantized.dequantize().shape == x.shape
        assert quantized.bits_per_element == pytest.approx(scheme.bits_per_element(4, axis, 40, 64))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_conf_file_says_which_package_and_comments_every_key(path: Path) -> None:
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    assert first == f"# @package kv.{path.stem}"
    assert all("#" in line for line in rest if line.strip())


UNIFORM = {"quantizer": "uniform", "symmetric": True, "group_size": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"symmetric": True, "group_size": 0}, r"kv\.mine\.quantizer is None. Valid: .*post_symmetric.*uniform"),
        (UNIFORM | {"quantizer": "kivy"}, r"'kivy'. Valid: .*uniform"),
        (UNIFORM | {"quantizer": "registry"}, r"'registry'. Valid"),
        (UNIFORM | {"quantizer": "base"}, r"'base'. Valid"),
        (UNIFORM | {"groupsize": 3}, r"unknown key kv\.mine\.groupsize. Valid keys there: .*group_size"),
        (UNIFORM | {"group_size": -1}, r"kv\.mine: .*-1"),
        (UNIFORM | {"group_size": "many"}, r"kv\.mine.*many"),
        (UNIFORM | {"group_size": 2.5}, r"kv\.mine.*2\.5"),
        (UNIFORM | {"symmetric": "perhaps"}, r"kv\.mine.*perhaps"),
        (UNIFORM | {"group_size": "???"}, r"no value for kv\.mine\.group_size"),
        ({"quantizer": "uniform", "symmetric": True}, r"no value for kv\.mine\.group_size"),
        ({"quantizer": "post_symmetric", "group_size": 0, "symmetric": True}, r"unknown key kv\.mine\.symmetric"),
    ],
)
def test_wrong_settings_are_refused_with_the_valid_ones(settings: dict[str, Any], message: str) -> None:
    for function in (registry.check, registry.build):
        with pytest.raises(ConfigError, match=message):
            function("mine", settings)


def test_checking_changes_nothing_and_settings_cannot_be_changed() -> None:
    settings = dict(UNIFORM)
    checked = registry.check("mine", settings)
    assert settings == UNIFORM
    assert (checked.symmetric, checked.group_size) == (True, 0)
    with pytest.raises(AttributeError):
        checked.group_size = 4
