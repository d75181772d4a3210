"""Sweeps: planned and checked before any work, finished jobs recognised, a killed job no neighbour's problem.

Here DVC is a small stand-in program (what `dvc exp run --temp` does with a name, seen from outside); tests/pipeline
runs the real one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from breakeven import dvc_experiment, sweep
from breakeven.dvc_experiment import JobResult, exists, name_of, run_job
from breakeven.errors import BreakevenError, ConfigError
from breakeven.tracking import provenance
from helpers import workspace

# What a job does is in its `measure.seed`: 9 is killed the first time, 8 fails, 7 is taken over by another process.
_DVC = """
import os, pathlib, subprocess, sys, time
name = sys.argv[sys.argv.index("-n") + 1]
overrides = [sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "-S"]
calls = pathlib.Path("calls.txt")
with calls.open("a") as stream:
    stream.write(" ".join(overrides) + "\\n")
seed = next(o.split("=")[1] for o in overrides if o.startswith("measure.seed"))
print(f"Reproducing experiment '{name}'", flush=True)
first = calls.read_text().count(f"measure.seed={seed}") == 1
if seed == "9" and first:
    stage = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("stage.pid").write_text(str(stage.pid))
    os.kill(os.getpid(), 9)
if seed == "8":
    sys.exit("stage failed: disk full")
if seed == "6":
    pathlib.Path("started").touch()
    time.sleep(600)
if not (seed == "7" and first):
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    ref = f"refs/exps/{head[:2]}/{head[2:]}/{name}"
    subprocess.check_call(["git", "update-ref", ref, head])
print("sweep", os.environ["BREAKEVEN_SWEEP_ID"], flush=True)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed workspace with conf/ and the stand-in for DVC."""
    workspace.conf_only(tmp_path)
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / "src" / "dvc").mkdir(parents=True)  # `python -m dvc` finds this one: PYTHONPATH=src
    (tmp_path / "src" / "dvc" / "__init__.py").touch()
    (tmp_path / "src" / "dvc" / "__main__.py").write_text(_DVC, encoding="utf-8")
    (tmp_path / ".gitignore").write_text(
        "__pycache__/\n/outputs/\n/.dvc/\n/calls.txt\n/stage.pid\n/started\n", encoding="utf-8"
    )
    workspace.commit_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _calls(root: Path) -> list[str]:
    file = root / "calls.txt"
    return (
        []
        if not file.exists()
        else [line.split("measure.seed=")[1].split()[0] for line in file.read_text().splitlines()]
    )


def test_the_plan_is_the_product_of_the_choices(root: Path) -> None:
    jobs = sweep.plan(["experiment=quick", "measure.seed=1,2", "speculate.k=[1],[1,2]"])
    assert len(jobs) == 4
    assert jobs[0] == ["experiment=quick", "measure.seed=1", "speculate.k=[1]"]
    assert _calls(root) == []


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["experiment=quick,nope"], "experiment has no option 'nope'"),
        (["measure.seed=1,abc"], "measure.seed"),
        (["experiment=quick", "+typo=1,2"], "unknown key `typo`"),
        (["experiment=quick", "speculate.k=[1],[0]"], r"speculate\.k=\[0\]: speculate.k holds 0"),
        (["experiment=quick", "drafter.ngram.match=most_recent,oldest"], "oldest"),
        (["--cfg"], "unknown option --cfg"),
        (["-m"], "nothing to sweep over"),
    ],
)
def test_a_sweep_with_one_bad_job_is_refused_before_any_runs(root: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep.sweep(["-m", *overrides])
    assert _calls(root) == []


def test_a_killed_and_a_failed_job_leave_their_neighbours_running_and_only_they_run_again(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-m", "experiment=quick", "measure.seed=1,9,8,2"]
    assert sweep.sweep(arguments) == 1
    assert _calls(root) == ["1", "9", "8", "2"]
    printed = capsys.readouterr().out
    states = re.findall(r"^   (\d) (\w+)", printed, flags=re.MULTILINE)
    assert states == [("0", "finished"), ("1", "killed"), ("2", "failed"), ("3", "finished")]
    assert "2 of 4 jobs are unfinished" in printed
    assert "stage failed: disk full" in printed
    # The stage that the killed process had started must not go on loading the machine.
    assert not _alive(int((root / "stage.pid").read_text()))

    assert sweep.sweep(arguments) == 1  # seed 8 fails again
    assert _calls(root)[4:] == ["9", "8"]


def test_a_finished_sweep_does_nothing_again_and_a_larger_one_runs_only_what_is_new(root: Path) -> None:
    assert sweep.sweep(["experiment=quick", "measure.seed=1,2"]) == 0
    assert sweep.sweep(["-m", "measure.seed=1,2", "experiment=quick"]) == 0
    assert sweep.sweep(["-m", "experiment=quick", "measure.seed=2,3"]) == 0
    assert _calls(root) == ["1", "2", "3"]


def test_a_job_that_another_dvc_process_took_over_is_tried_again(root: Path) -> None:
    """DVC processes share one stash; one that takes another's entry leaves it with exit code 0 and no experiment."""
    assert sweep.sweep(["-m", "experiment=quick", "measure.seed=7,1"]) == 0
    assert _calls(root) == ["7", "7", "1"]


def test_a_name_changes_with_whatever_the_result_depends_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ["experiment=quick", "speculate.k=[1,2]"]
    name = name_of(job)
    assert name == name_of(job[::-1])
    names = {name, name_of(["experiment=quick", "speculate.k=[1,3]"])}
    with monkeypatch.context() as patched:
        patched.setattr("breakeven.hardware.identity", lambda: "another")
        names.add(name_of(job))
    (root / "conf" / "config.yaml").open("a", encoding="utf-8").write("\n# edited\n")
    names.add(name_of(job))
    workspace.commit_all(root)
    names.add(name_of(job))
    assert len(names) == 5
    (root / "reports").mkdir()
    (root / "params.yaml").write_text("generated: true\n", encoding="utf-8")
    assert name_of(job) in names, "files that the pipeline itself rewrites are no change"
    assert subprocess.run(["git", "check-ref-format", f"refs/exps/{name}"], check=False).returncode == 0


def test_an_interrupted_driver_takes_its_job_down_with_it(root: Path) -> None:
    command = ["breakeven", "sweep", "-m", "experiment=quick", "measure.seed=6"]
    driver = workspace.start(root, *command)
    try:
        _wait_for(root / "started")
        children = psutil.Process(driver.pid).children(recursive=True)
        assert children
        driver.send_signal(signal.SIGTERM)
        driver.communicate(timeout=60)
        assert driver.returncode != 0
        assert not any(_alive(child.pid) for child in children)
    finally:
        driver.kill()


def test_without_a_commit_a_sweep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.conf_only(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(BreakevenError, match="git init"):
        sweep.sweep(["-m", "measure.seed=1,2"])


def test_only_abandoned_copies_are_removed(root: Path) -> None:
    standalone = root / ".dvc" / "tmp" / "exps" / "standalone"
    old, fresh, used = (standalone / f"tmp{name}" for name in ("old", "fresh", "used"))
    for folder in (old, fresh, used):
        folder.mkdir(parents=True)
    long_ago = time.time() - 3600
    for folder in (old, used):
        os.utime(folder, (long_ago, long_ago))
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=used, stdin=subprocess.PIPE) as worker:
        dvc_experiment.remove_abandoned(root)
        worker.communicate(b"\n")
    assert not old.exists()
    assert fresh.exists()
    assert used.exists()


def test_the_copy_of_a_killed_job_is_removed_and_no_other(root: Path) -> None:
    standalone, infos = (root / ".dvc" / "tmp" / "exps" / name for name in ("standalone", "run"))
    outside = root / "precious"
    for name, folder in (("mine", standalone / "tmp1"), ("other", standalone / "tmp2"), ("mine", outside)):
        folder.mkdir(parents=True)
        info = infos / folder.name / f"{folder.name}.run"
        info.parent.mkdir(parents=True)
        info.write_text(f'{{"name": "{name}", "root_dir": "{folder}"}}', encoding="utf-8")
    dvc_experiment.remove_workspace("mine", root)
    assert not (standalone / "tmp1").exists()
    assert (standalone / "tmp2").exists()
    assert outside.exists()


def test_results_survive_the_way_between_machines(root: Path) -> None:
    result = run_job(3, ["experiment=quick", "measure.seed=1"], root, root / "outputs" / "3", "abc")
    assert JobResult.load(root / "outputs" / "3") == result
    assert exists(result.name, root)
    assert "sweep abc" in Path(result.log).read_text(encoding="utf-8")
    assert result.ok


def test_the_patch_holds_new_source_files_and_no_generated_ones(root: Path) -> None:
    assert provenance.patch() == ""
    (root / "src" / "new.py").write_text("x = 1\n", encoding="utf-8")
    (root / "dvc.lock").write_text("schema: '2.0'\n", encoding="utf-8")
    (root / "notes.txt").write_text("mine\n", encoding="utf-8")
    patch = provenance.patch()
    assert "+x = 1" in patch
    assert "dvc.lock" not in patch
    assert "notes.txt" not in patch


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_for(file: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.05)
