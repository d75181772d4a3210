"""Reading and writing files so that a crash never leaves half of one under its real name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from breakeven.errors import BreakevenError

_CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` only if the block ends without an error.

    Raises:
        BreakevenError: the disk is full or the folder cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        # mkstemp makes files private; results are ordinary files.
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        reason = f"cannot write {target}: {error.strerror or error}. Free some disk space or fix the permissions"
        raise BreakevenError(f"{reason}; nothing was left half-written.") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write text (UTF-8) atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON atomically: sorted keys, no NaN or infinity (they become null), a newline at the end."""
    write_text(path, json.dumps(_finite(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON.

    Raises:
        BreakevenError: the file is missing or is not JSON; the message names the stage command that makes it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BreakevenError(f"{path} is missing. Run `dvc repro` to make it.") from error
    except json.JSONDecodeError as error:
        raise BreakevenError(f"{path} is not valid JSON ({error}). Delete it and run `dvc repro`.") from error


def write_parquet(path: str | Path, table: pd.DataFrame) -> None:
    """Write a table as parquet atomically, without the index."""
    with atomic_path(path) as temporary:
        table.to_parquet(temporary, index=False)


def read_parquet(path: str | Path) -> pd.DataFrame:
    """Read a parquet table.

    Raises:
        BreakevenError: the file is missing or unreadable.
    """
    try:
        return pd.read_parquet(path)
    except FileNotFoundError as error:
        raise BreakevenError(f"{path} is missing. Run `dvc repro` to make it.") from error
    except Exception as error:
        raise BreakevenError(f"{path} cannot be read ({error}). Delete it and run `dvc repro`.") from error


def sha256_file(path: str | Path) -> str:
    """Return the sha256 of a file as 64 hex digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Return the sha256 of a JSON-able value, independent of key order."""
    return hashlib.sha256(json.dumps(_finite(value), sort_keys=True).encode()).hexdigest()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return _finite(value.item())
    return value
