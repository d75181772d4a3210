"""Where weights come from: one file a kind, each with the same two functions.

`identity(source, store)` says in JSON what pins the content (no network, no absolute paths): it names the folder.
`prepare(source, partial, max_ram_gib, progress)` fills `partial/ready` with a Transformers folder (configuration,
tokenizer, safetensors) and returns what only the source knows, e.g. the quantization that was undone.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol, cast

from breakeven.config import SOURCE_KINDS, ModelConfig, SourceConfig
from breakeven.errors import ConfigError
from breakeven.models import store as model_store
from breakeven.models.store import Progress


class Source(Protocol):
    """What each file of this package offers."""

    def identity(self, source: SourceConfig, store: Path) -> dict[str, Any]:
        """Return what pins the content."""

    def prepare(self, source: SourceConfig, partial: Path, max_ram_gib: float, progress: Progress) -> dict[str, Any]:
        """Fill `partial/ready`; return facts that only the source knows."""


def of_kind(kind: str) -> Source:
    """Return the module of a kind of source.

    Raises:
        ConfigError: the kind is unknown.
    """
    if kind not in SOURCE_KINDS:
        raise ConfigError(f"model.source.kind is {kind!r}. Valid: {', '.join(SOURCE_KINDS)}.")
    return cast(Source, importlib.import_module(f"breakeven.models.sources.{kind}"))


def fetch(model: ModelConfig, store: Path, progress: Progress, *, max_ram_gib: float = 0.0) -> Path:
    """Return the verified folder of a model in the store; fetch it only if it is not there whole.

    Args:
        model: which model, from where.
        store: the model store, `paths.model_store()`.
        progress: receives one line of text a step.
        max_ram_gib: hardware.max_ram_gib; 0: what is available.

    Returns:
        `store/<name>-<digest12>`, with a manifest.

    Raises:
        DownloadError: the source cannot be reached, or what came is not what was pinned.
        BreakevenError: too little memory or disk.
    """
    source = of_kind(model.source.kind)
    identity = {"kind": model.source.kind, **source.identity(model.source, store)}

    def prepare(partial: Path) -> dict[str, Any]:
        from breakeven.models import facts

        known = source.prepare(model.source, partial, max_ram_gib, progress)
        described = facts.describe(partial / "ready")
        header = {"name": model.name, "license": model.license, "source": identity}
        return {**header, "dequantized_from": None, **known, **described}

    return model_store.install(store, model_store.folder_name(model.name, identity), prepare, progress)
