"""Drafters by name, and strict settings."""

from __future__ import annotations

import importlib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from breakeven.drafters import registry
from breakeven.drafters.base import Drafter
from breakeven.errors import ConfigError
from helpers.models import random_model

CONF = Path(__file__).parents[2] / "conf" / "drafter"


def test_names_are_the_modules_and_the_configuration_files() -> None:
    assert {"early_exit", "ngram", "small_lm"} <= set(registry.names())
    assert not {"base", "registry"} & set(registry.names())
    assert {path.stem for path in CONF.glob("*.yaml")} >= set(registry.names())


@pytest.mark.parametrize("name", registry.names())
def test_every_drafter_has_the_parts_of_one(name: str) -> None:
    module = importlib.import_module(f"breakeven.drafters.{name}")
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    classes = [c for c in own if issubclass(c, Drafter)]
    assert [c.name for c in classes] == [name]
    assert callable(module.build)
    documented = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert set(documented) == {f.name for f in fields(module.Settings)}


def test_unknown_drafter_names_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown drafter 'eagel'. Valid: .*early_exit.*ngram"):
        registry.check("eagel", {})
    with pytest.raises(ConfigError, match="unknown drafter 'base'"):
        registry.check("base", {})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ngram", {"typo": 1}, r"unknown key drafter\.ngram\.typo\. Valid keys there: max_ngram, min_ngram, match"),
        ("ngram", {"max_ngram": "three"}, r"drafter\.ngram"),
        ("ngram", {"max_ngram": [2.5]}, r"drafter\.ngram"),
        ("ngram", {"min_ngram": "???"}, r"no value for drafter\.ngram\.min_ngram"),
        ("ngram", {"max_ngram": [1], "min_ngram": 2}, r"drafter\.ngram: max_ngram"),
        ("ngram", {"match": "middle"}, "Valid: most_recent, leftmost"),
        ("early_exit", {"layers": [0]}, r"drafter\.early_exit\.layers"),
        ("early_exit", {"layers": None}, r"drafter\.early_exit"),
        ("small_lm", {}, r"drafter\.small_lm\.model is empty"),
        ("small_lm", {"model": "???"}, r"no value for drafter\.small_lm\.model"),
    ],
)
def test_wrong_settings_are_refused_with_the_mend(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.check(name, settings)


def test_an_open_value_in_a_hydra_config_is_not_filled_with_the_default() -> None:
    with pytest.raises(ConfigError, match=r"no value for drafter\.ngram\.min_ngram"):
        registry.check("ngram", OmegaConf.create({"min_ngram": "???"}))


def test_settings_come_back_typed_also_from_hydra() -> None:
    settings = OmegaConf.create({"max_ngram": [2, 4], "min_ngram": 2, "match": "leftmost"})
    assert isinstance(settings, DictConfig)
    checked = registry.check("ngram", settings)
    assert (checked.max_ngram, checked.min_ngram, checked.match) == ([2, 4], 2, "leftmost")


def test_candidates_can_all_be_built() -> None:
    target = random_model("llama")
    for name, settings in (("ngram", {"max_ngram": [1, 2]}), ("early_exit", {})):
        candidates = registry.candidates(name, settings, target.n_layers)
        assert len(candidates) >= 2
        for candidate in candidates:
            assert registry.build(name, target, candidate).name == name
    model = {"model": {"name": "draft"}}
    (candidate,) = registry.candidates("small_lm", model, target.n_layers)
    assert registry.build("small_lm", target, candidate, random_model("llama", seed=1)).name == "small_lm"


def test_setting_id_ignores_the_order_of_keys() -> None:
    assert registry.setting_id({"b": 1, "a": [2]}) == registry.setting_id({"a": [2], "b": 1}) == '{"a":[2],"b":1}'
