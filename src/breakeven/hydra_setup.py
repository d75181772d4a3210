"""What Hydra must know before it composes conf/: the schema, and how to digest conf/."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from breakeven.config import Config
from breakeven.paths import workspace


def conf_digest(folder: Path | None = None) -> str:
    """Return the sha256 of conf/: relative names and contents of every YAML file, in name order."""
    root = folder if folder is not None else workspace() / "conf"
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.yaml")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        # Line ends may differ between checkouts; meaning does not.
        digest.update(file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def register() -> None:
    """Register the schema as `breakeven_schema` and the resolver `${conf_digest:}` (again is harmless)."""
    ConfigStore.instance().store(name="breakeven_schema", node=Config)
    OmegaConf.register_new_resolver("conf_digest", conf_digest, replace=True)
