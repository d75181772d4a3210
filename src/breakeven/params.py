"""conf/ into params.yaml: the composition that DVC itself does in `dvc exp run`, but refused before it is written."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from breakeven import config, guard, io
from breakeven.config import Config
from breakeven.errors import ConfigError
from breakeven.paths import workspace

CONFIG_NAME = "config"


def compose(overrides: Sequence[str], destination: str | Path | None = None) -> Config:
    """Compose conf/ with Hydra overrides and replace params.yaml, if the result passes every check.

    Args:
        overrides: Hydra's grammar, e.g. `experiment=quick`, `speculate.k=[1,2]`.
        destination: the file to replace; None: params.yaml of this workspace.

    Raises:
        ConfigError: unknown group option, unknown key, wrong type, missing value or impossible combination; names
            the valid choices. The old file stays as it was.
    """
    text, checked = composed(overrides)
    io.write_text(destination or workspace() / "params.yaml", text)
    return checked


def composed(overrides: Sequence[str]) -> tuple[str, Config]:
    """Return what params.yaml would hold, as text and checked.

    Raises:
        ConfigError: see `compose`.
    """
    with tempfile.TemporaryDirectory(prefix="breakeven-params-") as folder:
        temporary = Path(folder) / "params.yaml"
        _compose_as_dvc_does(temporary, workspace() / "conf", list(overrides))
        checked = config.load(temporary)
        guard.check_registries(checked)
        return temporary.read_text(encoding="utf-8"), checked


def differences(overrides: Sequence[str], params: str | Path | None = None) -> list[str]:
    """Return the dotted keys in which params.yaml differs from what conf/ composes to.

    Raises:
        ConfigError: conf/ does not compose, or params.yaml cannot be read.
    """
    source = Path(params or workspace() / "params.yaml")
    guard.recorded_digest(source)  # refuses a missing or broken file with the command that mends it
    text, _ = composed(overrides)
    wanted, present = flatten(OmegaConf.create(text)), flatten(OmegaConf.load(source))
    absent = object()
    keys = sorted(wanted.keys() | present.keys())
    return [key for key in keys if wanted.get(key, absent) != present.get(key, absent)]


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; lists are leaves."""
    if isinstance(node, DictConfig):
        node = OmegaConf.to_container(node, resolve=False)
    if not isinstance(node, dict):
        return {prefix: node}
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _compose_as_dvc_does(output: Path, conf: Path, overrides: list[str]) -> None:
    from dvc.utils.hydra import compose_and_dump
    from hydra.errors import HydraException

    try:
        compose_and_dump(str(output), str(conf), None, CONFIG_NAME, str(conf.parent), overrides)
    except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
        raise explain(error, conf) from error


def explain(error: Exception, conf: Path) -> ConfigError:
    """Turn what Hydra or OmegaConf raise while composing into a refusal that lists the valid choices."""
    from hydra.errors import MissingConfigException, OverrideParseException

    first_line = str(error).splitlines()[0]
    if isinstance(error, MissingConfigException):
        group, _, option = str(error.missing_cfg_file or "").rpartition("/")
        options = sorted(file.stem for file in (conf / group).glob("*.yaml")) if group else []
        if options:
            return ConfigError(f"{group} has no option {option!r}. Valid: {', '.join(options)}.")
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"cannot read the override {error.override!r} ({first_line}). Write key=value, group=option or key=[a,b]; "
            "quote what the shell would take apart."
        )
    if "requires --multirun" in first_line or "Ambiguous value" in first_line:
        return ConfigError(f"{first_line.rstrip('.')}. Sweep with `breakeven sweep -m ...`; a list is key=[a,b].")
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        return ConfigError(_explain_key(cause, first_line, conf))
    return ConfigError(first_line)


def _explain_key(cause: OmegaConfBaseException, first_line: str, conf: Path) -> str:
    """Name the key, and the keys that exist where it was looked for."""
    key, owner = str(cause.full_key or cause.key), cause.object_type
    fields = getattr(owner, "__dataclass_fields__", None)
    if fields is not None and cause.key not in fields:
        groups = sorted(entry.name for entry in conf.iterdir() if entry.is_dir())
        where = f" Groups: {', '.join(groups)}." if owner is Config else ""
        return f"unknown key `{key}`. Valid keys there: {', '.join(sorted(fields))}.{where}"
    parent = cause.parent_node
    if "is not in struct" in str(cause) and isinstance(parent, DictConfig):
        return f"unknown key `{key}`. Valid keys there: {', '.join(sorted(map(str, parent)))}."
    reason = str(cause).splitlines()[0]
    return f"`{key}`: {reason}" if key and key != "None" else f"{first_line}: {reason}"
