"""What can go wrong in the middle of a stage (signals, a second run, a full disk) leaves nothing half-written."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from breakeven import io
from helpers import workspace
from helpers.workspace import run

Copy = Callable[[], Path]

# Stage -> a line after which it is in the middle of its work, and its outputs.
WORK = {
    "capture": ("capture:", ("data/activations",)),
    "kv_error": ("kv_error:", ("data/kv_error.parquet", "reports/metrics/kv_error.json")),
    "calibrate": ("calibrate:", ("data/calibration.json",)),
    "costs": ("costs behind", ("data/costs.parquet", "data/plan.json", "reports/metrics/costs.json")),
    "speculate": ("speculate:", ("data/rounds.parquet", "data/requests.parquet")),
}


def _content(root: Path, names: tuple[str, ...]) -> Mapping[str, str]:
    files = [
        file for name in names for file in ([root / name] if (root / name).is_file() else (root / name).rglob("*"))
    ]
    return {str(file.relative_to(root)): io.sha256_file(file) for file in files if file.is_file()}


def _leftovers(root: Path) -> list[Path]:
    folders = [root / name for name in ("data", "build", "reports")]
    return [file for folder in folders for file in folder.rglob("*") if file.suffix == ".tmp" or ".new" in file.name]


@pytest.mark.parametrize(
    "stage, signum, code",
    [
        ("kv_error", signal.SIGTERM, 143),
        ("speculate", signal.SIGINT, 130),
        ("capture", signal.SIGTERM, 143),
    ],
)
def test_a_signal_in_the_middle_of_a_stage_leaves_its_outputs_as_they_were(
    copy_of: Copy, stage: str, signum: signal.Signals, code: int
) -> None:
    root = copy_of()
    line, outputs = WORK[stage]
    before = _content(root, outputs)
    assert before
    process = workspace.start(root, sys.executable, f"pipelines/{stage}.py")
    seen = _read_until(process.stdout, line)
    process.send_signal(signum)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == code, seen + rest
    assert "nothing was left half-written" in rest
    assert _content(root, outputs) == before
    assert _leftovers(root) == []


def test_an_interrupted_repro_goes_on_where_it_stopped(copy_of: Copy) -> None:
    root = copy_of()
    params = root / "params.yaml"
    params.write_text(params.read_text(encoding="utf-8").replace("repeats: 3\n", "repeats: 4\n"), encoding="utf-8")
    process = workspace.start(root, "dvc", "repro", start_new_session=True)
    _read_until(process.stdout, "costs behind")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert _leftovers(root) == []
    done = run(root, "dvc", "repro", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Running stage 'costs'" in done.stdout
    assert "Running stage 'calibrate'" not in done.stdout
    assert io.read_json(root / "reports" / "metrics" / "costs.json")


def test_a_second_repro_at_the_same_time_is_refused_and_the_first_one_finishes(copy_of: Copy) -> None:
    root = copy_of()
    first = workspace.start(root, "dvc", "repro", "--force", "--single-item", "calibrate")
    _read_until(first.stdout, "Running stage 'calibrate'")
    second = run(root, "dvc", "repro", "--force", "--single-item", "calibrate")
    assert second.returncode != 0
    assert "busy" in second.stderr or "lock" in second.stderr
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 0, output


@pytest.mark.parametrize("stage", ["kv_error", "report"])
def test_a_write_that_fails_is_a_clear_error_and_the_old_results_stay(copy_of: Copy, stage: str) -> None:
    """A limit on file size makes the kernel refuse the write in the middle, as a full disk does."""
    root = copy_of()
    outputs = WORK[stage][1] if stage in WORK else ("reports/report.html", "reports/figures")
    before = _content(root, outputs)

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    process = workspace.start(root, sys.executable, f"pipelines/{stage}.py", preexec_fn=small_disk)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 2, output
    assert "error: cannot write" in output
    assert "Traceback" not in output
    assert _leftovers(root) == []
    # The file that failed is whole: the old one.
    after = _content(root, outputs)
    failed = output.split("error: cannot write ")[1].split(":")[0]
    assert after.get(failed) == before.get(failed)


def test_a_disk_that_fills_while_logging_loses_nothing(copy_of: Copy) -> None:
    root = copy_of()
    results = _content(root, ("reports",))

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    process = workspace.start(root, sys.executable, "pipelines/track.py", preexec_fn=small_disk)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 2, output
    assert "Nothing is lost" in output
    assert _content(root, ("reports",)) == results
    done = run(root, sys.executable, "pipelines/track.py")
    assert done.returncode == 0, done.stderr
    assert "6 runs logged" in done.stdout


def _read_until(stream: object, text: str, seconds: float = 300) -> str:
    """Read a child's output until a line or progress bar shows `text`."""
    seen = ""
    deadline = time.monotonic() + seconds
    while text not in seen:
        character = stream.read(1)  # type: ignore[attr-defined]
        assert character, f"ended before {text!r}: {seen}"
        assert time.monotonic() < deadline, seen
        seen += character
    return seen
