"""Schemes by name: `kv.<name>.quantizer` names one module of this package, with its `Settings`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

import breakeven.kv.schemes as package
from breakeven.errors import ConfigError
from breakeven.kv import accounting
from breakeven.kv.schemes.base import Quantized

_NOT_QUANTIZERS = {"base", "registry"}


@dataclass(frozen=True)
class Scheme:
    """A quantizer with its settings, under the name of its conf file."""

    name: str
    settings: Any
    _module: ModuleType

    @property
    def group_size(self) -> int:
        """Elements that share a scale, as configured; 0: the whole vector."""
        size: int = self.settings.group_size
        return size

    def levels(self, bits: int) -> int:
        """Distinct values that a code of nominal `bits` can take."""
        count: int = self._module.levels(bits, self.settings)
        return count

    def bits_per_element(self, bits: int, axis: str, n_tokens: int, head_dim: int) -> float:
        """Bits per element that must be stored, by the formula: codes and group numbers."""
        return accounting.bits_per_element(
            n_tokens,
            head_dim,
            axis=axis,
            group_size=self.group_size,
            code_bits=self._module.code_bits(bits, self.settings),
            group_numbers=self._module.group_numbers(self.settings),
        )

    def quantize(self, x: Tensor, bits: int, axis: str) -> Quantized:
        """Quantize [..., T, head_dim]; every leading index apart.

        Raises:
            ConfigError: groups do not divide head_dim.
            BreakevenError: the tensor holds NaN or infinity.
        """
        quantized: Quantized = self._module.quantize(x, bits, axis, self.settings)
        return quantized


def names() -> list[str]:
    """Return the names of all quantizers."""
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NOT_QUANTIZERS)


def check(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the typed settings of a scheme.

    Args:
        name: of the scheme, its file in conf/kv/.
        settings: its keys.

    Raises:
        ConfigError: no or an unknown quantizer, an unknown key, a wrong type or an impossible value; names the valid
            ones.
    """
    return build(name, settings).settings


def build(name: str, settings: Mapping[str, Any]) -> Scheme:
    """Return a scheme ready to use.

    Raises:
        ConfigError: see `check`.
    """
    quantizer = settings.get("quantizer")
    if quantizer not in names():
        raise ConfigError(f"kv.{name}.quantizer is {quantizer!r}. Valid: {', '.join(names())}.")
    module = importlib.import_module(f"{package.__name__}.{quantizer}")
    valid = [f.name for f in fields(module.Settings)]
    unknown = sorted(set(settings) - set(valid))
    if unknown:
        raise ConfigError(f"unknown key kv.{name}.{unknown[0]}. Valid keys there: {', '.join(valid)}.")
    missing = [key for key in valid if settings.get(key) is None or settings[key] == "???"]
    if missing:
        raise ConfigError(f"no value for kv.{name}.{missing[0]}. Set it in conf/kv/{name}.yaml or with key=value.")
    try:
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(module.Settings), dict(settings)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"kv.{name}: {str(error).splitlines()[0]}") from error
    except ConfigError as error:
        raise ConfigError(f"kv.{name}: {error}") from error
    return Scheme(name, typed, module)
