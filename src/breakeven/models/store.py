"""The model store: folders whose every file is listed with size and sha256, made whole or not at all.

A folder `<name>-<digest12>` is named after what it was made from (`identity`, a JSON-able mapping that pins the
content). It is prepared under `.partial/` and renamed at the end, so that a folder under its real name is complete.
`manifest.json` inside lists the files; `verify` compares them all. Hashing gigabytes takes seconds, so a stamp
(size, times, inode) of each file remembers what was verified; any write to a file changes its stamp.

Nothing here imports torch: a pipeline that has nothing to fetch is ready in a moment.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import psutil

from breakeven import io
from breakeven.errors import BreakevenError, DownloadError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
GIB = 1 << 30

Progress = Callable[[str], None]
FileFacts = dict[str, Any]  # {"sha256": 64 hex digits, "bytes": int}


def folder_name(name: str, identity: Mapping[str, Any]) -> str:
    """Return `<name>-<digest12>`: the digest is that of the identity, so another source is another folder."""
    return f"{name}-{io.sha256_json({'schema_version': SCHEMA_VERSION, **identity})[:12]}"


def install(store: Path, folder: str, prepare: Callable[[Path], dict[str, Any]], progress: Progress) -> Path:
    """Return the folder, verified; prepare it first if it is missing or damaged.

    Args:
        store: the model store.
        folder: name of the folder.
        prepare: called with a working folder that survives interruptions (what an earlier try left is still there);
            puts the finished files into its subfolder `ready` and returns what the manifest should say besides them.
        progress: receives one line of text a step.

    Raises:
        DownloadError: from `prepare`.
        BreakevenError: the disk is full or the store cannot be written.
    """
    final, partial = store / folder, store / ".partial" / folder
    with disk_errors(store), _locked(store, folder, progress):
        problem = find_problem(final)
        if problem is None:
            return final
        if final.exists():
            progress(f"{final}: {problem}; fetching it again.")
        ready = partial / "ready"
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir(parents=True)
        facts = prepare(partial)
        for path in ready.iterdir():
            path.chmod(0o644)  # some libraries write private files; these are ordinary ones
        files = {path.name: file_facts(path) for path in sorted(ready.iterdir())}
        io.write_json(ready / MANIFEST, {"schema_version": SCHEMA_VERSION, **facts, "files": files})
        _swap(ready, final)
        shutil.rmtree(partial, ignore_errors=True)
        problem = find_problem(final)
        if problem is not None:
            raise DownloadError(f"{final} does not read back as it was written ({problem}). Check the disk.")
    return final


def _swap(ready: Path, final: Path) -> None:
    """Rename `ready` to `final`; a damaged folder there gives way."""
    if final.exists():
        damaged = ready.with_name("damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        final.rename(damaged)
    ready.rename(final)


@contextlib.contextmanager
def _locked(store: Path, folder: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one folder, so that two downloads at once do not collide; the second waits."""
    (store / ".locks").mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(store / ".locks" / f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"another process is fetching {folder}: waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write (full disk, no permission) into a refusal that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO):
            raise
        raise BreakevenError(
            f"cannot write into {folder}: {error.strerror}. Free some disk space or fix the permissions and run the "
            "same command again; nothing was left half-written."
        ) from error


def file_facts(path: Path) -> FileFacts:
    """Return size and sha256 of a file."""
    return {"sha256": io.sha256_file(path), "bytes": path.stat().st_size}


def manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest.

    Raises:
        DownloadError: it is missing or unreadable.
    """
    try:
        content = io.read_json(folder / MANIFEST)
        if content["schema_version"] == SCHEMA_VERSION and isinstance(content["files"], dict):
            return dict(content)
    except (BreakevenError, KeyError, TypeError):
        pass
    raise DownloadError(f"{folder} has no readable {MANIFEST}. Run `dvc repro download` to fetch it again.")


def verify(folder: Path, expected: Mapping[str, FileFacts] | None = None) -> dict[str, Any]:
    """Check every file of a folder against its manifest, and the manifest against `expected`.

    Args:
        folder: a folder of the store.
        expected: name to {"sha256", "bytes"}, e.g. from models.lock.json; None: the manifest alone.

    Returns:
        The manifest.

    Raises:
        DownloadError: a file is missing, extra, truncated or altered; names it and the mend.
    """
    problem = find_problem(folder)
    if problem is None:
        content = manifest(folder)
        if expected is None or content["files"] == dict(expected):
            return content
        problem = "its files are not those that build/models.lock.json lists"
    raise DownloadError(f"{folder}: {problem}. Run `dvc repro download` to fetch it again.")


def find_problem(folder: Path) -> str | None:
    """Return what is wrong with a folder in words, or None when every file is as the manifest says."""
    try:
        files: dict[str, FileFacts] = manifest(folder)["files"]
    except DownloadError:
        return f"{MANIFEST} is missing or unreadable" if folder.exists() else "it is missing"
    there = {path.name for path in folder.iterdir()} - {MANIFEST}
    if missing := sorted(files.keys() - there):
        return f"{', '.join(missing)} is missing"
    if extra := sorted(there - files.keys()):
        return f"{', '.join(extra)} does not belong there"
    for name, facts in files.items():
        size = (folder / name).stat().st_size
        if size != facts["bytes"]:
            return f"{name} has {size} bytes instead of {facts['bytes']} (truncated or altered)"
    hashes = hash_files(folder, sorted(files), folder.parent / ".stamps" / f"{folder.name}.json")
    altered = [name for name, facts in files.items() if hashes[name] != facts["sha256"]]
    return f"{', '.join(altered)} has another sha256 (altered)" if altered else None


def hash_files(folder: Path, names: list[str], stamps_path: Path) -> dict[str, str]:
    """Return the sha256 of files, reading only those whose stamp changed since they were last hashed.

    Args:
        folder: where the files are.
        names: of the files.
        stamps_path: JSON file that remembers stamps and hashes; lost or unreadable: everything is read again.
    """
    try:
        known = io.read_json(stamps_path)
        assert isinstance(known, dict)
    except (BreakevenError, AssertionError):
        known = {}
    current: dict[str, Any] = {}
    for name in names:
        path = folder / name
        # Taken before reading: a write during the read changes the stamp, and the next call reads again.
        stamp = _stamp(path)
        entry = known.get(name)
        valid = isinstance(entry, dict) and entry.get("stamp") == stamp
        current[name] = entry if valid else {"stamp": stamp, "sha256": io.sha256_file(path)}
    if current != known:
        # A read-only store is fine: it is only slower.
        with contextlib.suppress(BreakevenError, OSError):
            io.write_json(stamps_path, current)
    return {name: str(entry["sha256"]) for name, entry in current.items()}


def _stamp(path: Path) -> list[int]:
    """Return size, times and inode: ctime cannot be set back, so that no write goes unseen."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def require_disk(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse before a write that cannot succeed.

    Raises:
        DownloadError: less space is free than needed, with 256 MiB to spare.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed_bytes + (GIB >> 2) > free:
        raise DownloadError(
            f"{what} needs {needed_bytes / GIB:.2f} GiB on disk, but only {free / GIB:.2f} GiB are free in {folder}. "
            "Free some space or choose a smaller model (model=smollm2_135m)."
        )


def require_ram(needed_bytes: int, max_ram_gib: float, what: str) -> None:
    """Refuse before an allocation that would bring the machine to its knees.

    Args:
        needed_bytes: estimate of the peak.
        max_ram_gib: hardware.max_ram_gib; 0: what is available on this machine now.
        what: for the message.

    Raises:
        BreakevenError: more is needed than there is.
    """
    limit = int(max_ram_gib * GIB) if max_ram_gib > 0 else psutil.virtual_memory().available
    if needed_bytes > limit:
        origin = "hardware.max_ram_gib" if max_ram_gib > 0 else "what this machine has available"
        raise BreakevenError(
            f"{what} needs about {needed_bytes / GIB:.2f} GiB of memory, more than {limit / GIB:.2f} GiB ({origin}). "
            "Choose a smaller model (model=smollm2_135m), a narrower dtype, or raise hardware.max_ram_gib."
        )
