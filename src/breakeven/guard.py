"""Everything that can be refused before any work: stale or mistyped parameters, absent hardware.

`dvc repro` never composes conf/, so a params.yaml older than conf/ would be run silently; `dvc exp run -S +typo=1`
composes what no stage reads. Both end here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from omegaconf import DictConfig, OmegaConf

from breakeven import config, hardware
from breakeven.config import Config
from breakeven.errors import ConfigError
from breakeven.hydra_setup import conf_digest

MEND = "Run `make params` (or `breakeven params key=value ...`) to compose it again."


class Passed(TypedDict):
    """build/guard.json: what was checked. Content-stable."""

    conf_digest: str
    experiment: str
    hardware: str
    model: str
    workload: str
    schemes: list[str]
    drafters: list[str]


def check(params: str | Path = "params.yaml", conf: Path | None = None) -> Passed:
    """Refuse a params.yaml that should not be run here.

    Args:
        params: the composed parameters.
        conf: folder of the hand-edited configuration; None: conf/ of this workspace.

    Raises:
        ConfigError: params.yaml is missing, older than conf/, or holds what the schema or a registry refuses.
        HardwareError: the hardware target is not here.
    """
    require_fresh(params, conf)
    loaded = config.load(params)
    check_registries(loaded)
    hardware.require(loaded.hardware)
    return Passed(
        conf_digest=loaded.meta.conf_digest,
        experiment=loaded.experiment,
        hardware=loaded.hardware.name,
        model=loaded.model.name,
        workload=loaded.workload.name,
        schemes=sorted(loaded.kv),
        drafters=sorted(loaded.drafter),
    )


def require_fresh(params: str | Path, conf: Path | None = None) -> None:
    """Refuse a params.yaml that was composed from another conf/ than the one on disk.

    Raises:
        ConfigError: names both digests and the command that mends it.
    """
    recorded, present = recorded_digest(params), conf_digest(conf)
    if recorded != present:
        composed_from = recorded[:12] if recorded else "nothing that it names (meta.conf_digest is missing)"
        raise ConfigError(
            f"{params} does not match conf/: it was composed from {composed_from}, conf/ is now {present[:12]}. {MEND}"
        )


def recorded_digest(params: str | Path) -> str:
    """Return meta.conf_digest of a params.yaml, read without the schema (which may have changed since).

    Raises:
        ConfigError: the file is missing or not a YAML mapping.
    """
    try:
        raw: Any = OmegaConf.load(params)
    except FileNotFoundError as error:
        raise ConfigError(f"{params} is missing. {MEND}") from error
    except Exception as error:
        raise ConfigError(f"{params} is not valid YAML ({str(error).splitlines()[0]}). {MEND}") from error
    if not isinstance(raw, DictConfig):
        raise ConfigError(f"{params} must hold a mapping. {MEND}")
    return str(OmegaConf.select(raw, "meta.conf_digest") or "")


def check_registries(loaded: Config) -> None:
    """Check the settings of every scheme and drafter against the dataclass that its own file declares.

    Raises:
        ConfigError: unknown scheme or drafter, unknown key, wrong type, impossible value.
    """
    # Drafters import torch; a stale params.yaml should be refused without waiting for it.
    import breakeven.drafters.registry as drafters
    import breakeven.kv.schemes.registry as schemes

    for name, settings in loaded.kv.items():
        schemes.check(name, require_mapping(f"kv.{name}", settings))
    for name, settings in loaded.drafter.items():
        drafters.check(name, require_mapping(f"drafter.{name}", settings))


def require_mapping(key: str, settings: Any) -> dict[str, Any]:
    """Return the settings of one scheme or drafter as a mapping.

    Raises:
        ConfigError: they are something else (`+kv.foo=1`).
    """
    if not isinstance(settings, dict):
        raise ConfigError(f"`{key}` is {settings!r}. It must hold the settings of one scheme or drafter, as in conf/.")
    return {str(name): value for name, value in settings.items()}
