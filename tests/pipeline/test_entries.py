"""Every entry a user has, on the tiny model: `dvc repro`, `dvc exp run`, `breakeven sweep`, and their refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from breakeven import io
from helpers import workspace
from helpers.workspace import run

STAGES = (
    "guard", "hardware", "download", "capture", "kv_error", "calibrate", "costs", "speculate", "summarize", "report",
    "track",
)  # fmt: skip
ALWAYS = {"hardware", "download", "track"}
Copy = Callable[[], Path]
IDENTITY = {
    f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in (("NAME", "a"), ("EMAIL", "a@b.c"))
}


def _ran(output: str) -> set[str]:
    return set(re.findall(r"Running stage '(\w+)'", output))


def _runs(root: Path) -> dict[tuple[str, str], int]:
    """Count the MLflow runs of a repository by experiment and status."""
    connection = sqlite3.connect(root / "mlflow" / "mlflow.db")
    sql = (
        "SELECT experiments.name, runs.status, COUNT(*) FROM runs JOIN experiments USING (experiment_id) GROUP BY 1, 2"
    )
    counts = {(name, status): count for name, status, count in connection.execute(sql)}
    connection.close()
    return counts


def test_a_fresh_clone_runs_every_stage_and_leaves_what_the_readme_promises(finished: Path) -> None:
    output = (finished / "repro.txt").read_text(encoding="utf-8")
    assert _ran(output) == set(STAGES)
    assert (finished / "reports" / "report.html").stat().st_size > 10_000
    assert len(io.read_json(finished / "reports" / "claims.json")) == 35
    for name in ("kv_error", "costs", "speculative", "acceptance", "audits"):
        assert io.read_json(finished / "reports" / "metrics" / f"{name}.json"), name
    rows = io.read_json(finished / "reports" / "metrics" / "speculative.json")
    machine = io.read_json(finished / "build" / "hardware.json")["machine"]
    assert {row["machine"] for row in rows} == {machine}
    assert {row["drafter"] for row in rows} == {"ngram", "early_exit"}
    assert _runs(finished) == {("breakeven/kv", "FINISHED"): 4, ("breakeven/speculative", "FINISHED"): 2}


def test_a_second_repro_does_nothing_and_a_lost_database_is_rebuilt(copy_of: Copy) -> None:
    root = copy_of()  # without MLflow's database: cached stages must leave no hole in it
    locked = (root / "dvc.lock").read_bytes()
    done = run(root, "dvc", "repro")
    assert done.returncode == 0, done.stderr
    assert _ran(done.stdout) == ALWAYS
    assert _runs(root) == {("breakeven/kv", "FINISHED"): 4, ("breakeven/speculative", "FINISHED"): 2}
    done = run(root, "dvc", "repro")
    assert _ran(done.stdout) == ALWAYS
    assert "0 runs logged, 6 were there already" in done.stdout
    assert (root / "dvc.lock").read_bytes() == locked
    assert workspace.run(root, "git", "status", "--porcelain").stdout == ""


def test_on_another_machine_what_is_timed_is_measured_again_and_nothing_else(copy_of: Copy) -> None:
    """DVC's run cache replays old timings; only the fingerprint among the dependencies prevents that."""
    root = copy_of()
    fingerprint = io.read_json(root / "build" / "hardware.json")
    (root / "build" / "hardware.json").unlink()  # a link into the cache
    io.write_json(root / "build" / "hardware.json", {**fingerprint, "machine": "000000000000"})
    done = run(root, "dvc", "status", "--json")
    changed = {
        stage
        for stage, reasons in json.loads(done.stdout).items()
        if any(
            "build/hardware.json" in reason.get("changed deps", {}) for reason in reasons if isinstance(reason, dict)
        )
    }
    assert {"costs", "speculate"} <= changed
    assert not {"capture", "kv_error", "calibrate"} & changed


def test_an_experiment_by_override_runs_what_the_override_concerns(copy_of: Copy) -> None:
    root = copy_of()
    done = run(
        root,
        "dvc",
        "exp",
        "run",
        "-n",
        "longer",
        "-S",
        "experiment=quick",
        "-S",
        "speculate.k=[1,2]",
        variables=IDENTITY,
    )
    assert done.returncode == 0, done.stderr
    assert _ran(done.stdout) == ALWAYS, "quick has these draft lengths"
    done = run(
        root,
        "dvc",
        "exp",
        "run",
        "-n",
        "shorter",
        "-S",
        "experiment=quick",
        "-S",
        "speculate.k=[1]",
        variables=IDENTITY,
    )
    assert done.returncode == 0, done.stderr
    assert _ran(done.stdout) == ALWAYS | {"guard", "speculate", "summarize", "report"}
    rows = io.read_json(root / "reports" / "metrics" / "speculative.json")
    assert {row["k"] for row in rows if not row["calibrated"]} <= {1}, "the calibrated k may be the same"
    assert 1 in {row["k"] for row in rows}
    # Two measurements of the drafters; the schemes' result did not change and is logged once.
    assert _runs(root) == {("breakeven/kv", "FINISHED"): 4, ("breakeven/speculative", "FINISHED"): 4}


def test_mistakes_are_refused_before_any_work_by_every_entry(copy_of: Copy) -> None:
    root = copy_of()
    for override, message in (
        ("+typo=1", "unknown key `typo`"),
        ("+hardware.threds=3", "unknown key `hardware.threds`"),
        ("speculate.k=[0]", "speculate.k holds 0"),
        ("hardware=cuda_h200", "needs a CUDA device"),
    ):
        done = run(root, "dvc", "exp", "run", "-S", "experiment=quick", "-S", override, variables=IDENTITY)
        assert done.returncode != 0
        assert message in done.stderr
        assert _ran(done.stdout) <= {"guard"}
    for override, message in (("measure.seed=abc", "measure.seed"), ("experiment=nope", "Available options")):
        done = run(root, "dvc", "exp", "run", "-S", override, variables=IDENTITY)
        assert done.returncode != 0
        assert message in done.stderr
    run(root, "git", "checkout", "--quiet", "params.yaml")
    file = root / "conf" / "speculate" / "quick.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("repeats: 1", "repeats: 2"), encoding="utf-8")
    done = run(root, "dvc", "repro")
    assert done.returncode != 0
    assert "make params" in done.stderr
    assert _ran(done.stdout) == {"guard"}


def test_a_sweep_with_one_job_killed_finishes_the_others_and_then_only_that_one(copy_of: Copy) -> None:
    root = copy_of()
    command = ("breakeven", "sweep", "-m", "experiment=quick", "track.experiment_prefix=a,b,c,d")
    sweep = workspace.start(root, *command)
    log = next(iter(_wait(lambda: list((root / "outputs" / "sweep").glob("*/1/job.log")))))
    _wait(lambda: "Running stage 'hardware'" in log.read_text(encoding="utf-8"))
    victim = next(
        process for process in psutil.Process(sweep.pid).children(recursive=True)
        if "experiment_prefix=b" in " ".join(process.cmdline())
    )  # fmt: skip
    os.kill(victim.pid, signal.SIGKILL)
    output, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 1, output
    assert _states(output) == ["finished", "killed", "finished", "finished"]
    assert list((root / ".dvc" / "tmp" / "exps" / "standalone").glob("tmp*")) == []
    assert {name.split("/")[0] for name, _ in _runs(root)} == {"a", "c", "d"}

    again = run(root, *command, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    assert _states(again.stdout) == ["skipped", "finished", "skipped", "skipped"]
    assert {name.split("/")[0] for name, _ in _runs(root)} == {"a", "b", "c", "d"}
    assert {status for _, status in _runs(root)} == {"FINISHED"}
    assert run(root, "git", "status", "--porcelain").stdout == "", "a sweep leaves the workspace alone"
    sweeps = sqlite3.connect(root / "mlflow" / "mlflow.db").execute(
        "SELECT DISTINCT value FROM tags WHERE key = 'sweep_id'"
    ).fetchall()  # fmt: skip
    assert len(sweeps) == 1, "both calls are one sweep"


def test_stages_of_an_experiment_run_the_code_of_its_own_copy(copy_of: Copy) -> None:
    """The package is installed from another folder than the copy that an experiment works in."""
    root = copy_of()
    source = root / "src" / "breakeven" / "guard.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('MEND = "', 'print("the clone\'s own code")\nMEND = "'), encoding="utf-8")
    elsewhere = {"PYTHONPATH": str(workspace.REPOSITORY / "src")}
    done = run(root, "breakeven", "sweep", "-m", "experiment=quick", "track.experiment_prefix=z", variables=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the clone's own code" in done.stdout


def _states(output: str) -> list[str]:
    return re.findall(r"^ +\d+ (finished|skipped|failed|killed) ", output, flags=re.MULTILINE)


def _wait(condition: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return answer
