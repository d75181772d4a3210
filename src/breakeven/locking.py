"""One timed section at a time on a machine, whoever started it.

Two sweeps, or a sweep and a `dvc repro` in another clone, would time each other's load. The lock file therefore lies
in the system's temporary folder, not in a repository; the kernel releases it when its holder dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_NAME = "breakeven-timing.lock"


def lock_path() -> Path:
    """Return the one place of the lock on this machine: /tmp where there is one, for TMPDIR may differ by process."""
    shared = Path("/tmp")  # noqa: S108 - the name is fixed on purpose, and the file is only ever locked
    return (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())) / _NAME


@contextlib.contextmanager
def machine_lock(path: Path | None = None) -> Iterator[None]:
    """Hold the machine for a timed section; say so when another one must end first.

    Args:
        path: another lock file, for tests.
    """
    # 0o666: every user of the machine may lock the file that the first one created.
    lock = FileLock(path or lock_path(), mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting: another run is timing on this machine ({lock.lock_file})", file=sys.stderr, flush=True)  # noqa: T201
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
