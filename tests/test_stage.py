"""How a stage ends is how its process ends: refusals 2, interrupts 130, SIGTERM 143, bugs with a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from pathlib import Path
from breakeven import io
from breakeven.errors import BreakevenError
from breakeven.stage import run

def stage():
    {body}

run(stage, offline={offline})
"""

WRITES = """
    with io.atomic_path("out.json") as path:
        path.write_text("half")
        Path("started").touch()
        time.sleep(30)
"""


def script(tmp_path: Path, body: str, offline: bool = True) -> list[str]:
    (tmp_path / "s.py").write_text(SCRIPT.format(body=body.strip(), offline=offline))
    return [sys.executable, "s.py"]


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("pass", 0, ""),
        ("raise BreakevenError('mend it so')", 2, "error: mend it so\n"),
        ("raise ValueError('bug')", 1, "Traceback"),
    ],
)
def test_exit_codes(tmp_path: Path, body: str, code: int, text: str) -> None:
    done = subprocess.run(script(tmp_path, body), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert text in done.stderr
    assert ("Traceback" in done.stderr) == (code == 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_a_write_leaves_nothing_half_written(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(script(tmp_path, WRITES), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline, "the stage never started"
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == code
    assert "nothing was left half-written" in stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.py", "started"]


def test_the_hub_is_off_in_every_stage_but_the_one_that_downloads(tmp_path: Path) -> None:
    for offline in (True, False):
        body = "print(os.environ.get('HF_HUB_OFFLINE'), os.environ.get('HF_DATASETS_OFFLINE'))"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        done = subprocess.run(
            script(tmp_path, body, offline), cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
        )
        assert done.stdout.strip() == ("1 1" if offline else "None None")
