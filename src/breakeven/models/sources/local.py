"""A model from a folder on this machine: a Transformers folder with safetensors, or a GGUF file.

The files are copied into the store, so that a later change of the folder never reaches a measurement unseen.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from breakeven import io
from breakeven.config import SourceConfig
from breakeven.errors import BreakevenError, DownloadError
from breakeven.models import facts, files, gguf_convert, store
from breakeven.models.store import Progress
from breakeven.paths import home, workspace


def identity(source: SourceConfig, store: Path) -> dict[str, Any]:
    """Return the sha256 over names and contents of the files; the path is not part of it.

    Raises:
        DownloadError: the folder or file is missing, or holds no usable weights.
    """
    where = _resolve(source)
    names = _names(where)
    # Stamps make the second look at a large folder quick; they are kept by its path.
    stamps = store / ".stamps" / f"local-{hashlib.sha256(str(where).encode()).hexdigest()[:12]}.json"
    hashes = _hash(where if where.is_dir() else where.parent, names, stamps)
    return {"content_sha256": io.sha256_json(hashes)}


def prepare(source: SourceConfig, partial: Path, max_ram_gib: float, progress: Progress) -> dict[str, Any]:
    """Copy the folder's data files, or convert the GGUF file; see `breakeven.models.sources`."""
    where, ready = _resolve(source), partial / "ready"
    if where.is_file():
        return {"dequantized_from": gguf_convert.convert(where, ready, max_ram_gib, progress)}
    names = _names(where)
    facts.require_supported(where)
    size = sum((where / name).stat().st_size for name in names)
    store.require_disk(partial, size, f"copying {where}")
    progress(f"copying {len(names)} files ({size / 1e6:.0f} MB) from {where}")
    for name in names:
        shutil.copyfile(where / name, ready / name)
    return {}


def _resolve(source: SourceConfig) -> Path:
    """Return the absolute path; a relative one counts from the workspace, then from the repository itself."""
    path = Path(source.path or "").expanduser()
    candidates = [path] if path.is_absolute() else [workspace() / path, home() / path]
    for candidate in candidates:
        if candidate.exists():
            return candidate.resolve()
    raise DownloadError(
        f"model.source.path {source.path} does not exist. Give a Transformers folder (config.json, tokenizer.json, "
        "model.safetensors) or a .gguf file."
    )


def _names(where: Path) -> list[str]:
    if where.is_file():
        if where.suffix != ".gguf":
            raise DownloadError(f"{where} is a file but not .gguf. Give a Transformers folder or a .gguf file.")
        return [where.name]
    return files.wanted((path.name for path in where.iterdir() if path.is_file()), str(where))


def _hash(folder: Path, names: list[str], stamps: Path) -> dict[str, str]:
    try:
        return store.hash_files(folder, names, stamps)
    except OSError as error:
        raise BreakevenError(f"cannot read {folder}: {error.strerror}. Fix the permissions.") from error
