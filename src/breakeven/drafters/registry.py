"""Drafters by name: one module of this package each, with `Settings` (its conf file) and `build`."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import breakeven.drafters as package
from breakeven.drafters.base import Drafter
from breakeven.errors import ConfigError
from breakeven.models.adapter import LayeredModel

_NOT_DRAFTERS = {"base", "registry"}


def names() -> list[str]:
    """Return the names of all drafters."""
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NOT_DRAFTERS)


def _module(name: str) -> ModuleType:
    if name not in names():
        raise ConfigError(f"unknown drafter {name!r}. Valid: {', '.join(names())}.")
    return importlib.import_module(f"breakeven.drafters.{name}")


def check(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the typed settings of a drafter.

    Raises:
        ConfigError: unknown drafter, unknown key, wrong type or impossible value; names the valid ones.
    """
    schema = _module(name).Settings
    valid = [f.name for f in fields(schema)]
    unknown = sorted(set(settings) - set(valid))
    if unknown:
        raise ConfigError(f"unknown key drafter.{name}.{unknown[0]}. Valid keys there: {', '.join(valid)}.")
    try:
        given = OmegaConf.to_container(settings, resolve=True) if OmegaConf.is_config(settings) else dict(settings)
        # Before the merge: it would put the schema's default in the place of a `???`.
        missing = sorted(OmegaConf.missing_keys(OmegaConf.create(given)))
        if missing:
            raise ConfigError(f"no value for drafter.{name}.{missing[0]} (`???`). Set it with key=value.")
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), given))
    except OmegaConfBaseException as error:
        raise ConfigError(f"drafter.{name}: {str(error).splitlines()[0]}") from error


def candidates(name: str, settings: Mapping[str, Any], n_layers: int) -> list[dict[str, Any]]:
    """Return the settings of a drafter that calibration chooses from."""
    options: list[dict[str, Any]] = check(name, settings).candidates(n_layers)
    return options


def build(
    name: str, target: LayeredModel, setting: Mapping[str, Any], draft_model: LayeredModel | None = None
) -> Drafter:
    """Build one drafter at one setting (an entry of `candidates`)."""
    drafter: Drafter = _module(name).build(target, dict(setting), draft_model)
    return drafter


def setting_id(setting: Mapping[str, Any]) -> str:
    """Return the canonical text of a setting: the key that result tables share."""
    return json.dumps(dict(setting), sort_keys=True, separators=(",", ":"))
