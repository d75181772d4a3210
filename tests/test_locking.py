"""Timed sections of two processes never overlap, wherever their repositories lie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from breakeven.locking import lock_path, machine_lock

_HOLD = """
import sys, time
from pathlib import Path
from breakeven.locking import machine_lock
with machine_lock(Path(sys.argv[1])):
    started = time.monotonic()
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
    print(started, time.monotonic(), flush=True)
"""


def _hold(lock: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(lock), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_timed_sections_of_two_processes_do_not_overlap_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    processes = [_hold(tmp_path / "lock", 0.7) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in processes]
    spans = sorted(tuple(map(float, out.splitlines()[1].split())) for out, _ in answers)
    assert spans[0][1] <= spans[1][0]
    assert sum("waiting: another run is timing" in error for _, error in answers) == 1


def test_a_killed_holder_releases_the_machine(tmp_path: Path) -> None:
    holder = _hold(tmp_path / "lock", 60)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    started = time.monotonic()
    with machine_lock(tmp_path / "lock"):
        assert time.monotonic() - started < 5


def test_an_error_in_a_timed_section_releases_the_machine(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="boom"), machine_lock(tmp_path / "lock"):
        raise RuntimeError("boom")
    with machine_lock(tmp_path / "lock"):
        pass


def test_the_lock_is_the_machines_own_not_a_repositorys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR often differs between a shell and a scheduler's job on the same machine."""
    before = lock_path()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert lock_path() == before
    assert before.is_absolute()
    assert os.access(before.parent, os.W_OK)
