"""The projection on a real SQLite store: no hole, no duplicate, nothing lost, whatever happens to the store."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from breakeven import io
from breakeven.tracking import provenance, publish, reap
from breakeven.tracking.project import project
from breakeven.tracking.store import TrackingError
from helpers import reported, workspace

TRACK = str(workspace.REPOSITORY / "pipelines" / "track.py")


@pytest.fixture
def database(root: Path, fresh_database: Path) -> Path:
    """The workspace's database, initialised and empty."""
    (root / "mlflow").mkdir()
    return Path(shutil.copy2(fresh_database, root / "mlflow" / "mlflow.db"))


def _query(database: Path, sql: str, *values: str) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


def _results_logged(database: Path) -> Counter[str]:
    sql = "SELECT value FROM tags JOIN runs USING (run_uuid) WHERE key = 'result_id' AND status = 'FINISHED'"
    return Counter(value for (value,) in _query(database, sql))


def _track(root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return workspace.run(root, sys.executable, TRACK, variables=variables)


def test_a_fresh_clone_gets_one_finished_run_each_in_the_right_experiment(root: Path) -> None:
    done = _track(root)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    database = root / "mlflow" / "mlflow.db"
    sql = (
        "SELECT experiments.name, runs.status, COUNT(*) FROM runs JOIN experiments USING (experiment_id) GROUP BY 1, 2"
    )
    counts = {(name, status): count for name, status, count in _query(database, sql)}
    assert counts == {("breakeven/kv", "FINISHED"): 4, ("breakeven/speculative", "FINISHED"): 2}
    results = io.read_json(root / "build" / "track.json")["results"]
    assert _results_logged(database) == Counter(results.values())
    assert not (root / "mlruns").exists(), "nothing lies beside the declared folders"


def test_metrics_params_tags_and_artifacts_of_a_run_are_there(root: Path, database: Path) -> None:
    project(root)
    run = _query(
        database,
        "SELECT run_uuid FROM tags WHERE key = 'subject' AND value = 'ngram'",
    )[0][0]
    steps = _query(database, "SELECT DISTINCT step FROM metrics WHERE key = 'alpha' AND run_uuid = ?", run)
    assert sorted(steps) == [(1,), (2,), (4,), (8,)]
    keys = {key for (key,) in _query(database, "SELECT key FROM latest_metrics WHERE run_uuid = ?", run)}
    assert {
        "alpha",
        "alpha_low",
        "c_high",
        "speedup",
        "tau",
        "peak_memory_bytes",
        "kv_bytes_per_token",
        "best_k",
    } <= keys
    parameters = dict(_query(database, "SELECT key, value FROM params WHERE run_uuid = ?", run))  # type: ignore[arg-type]
    assert parameters["drafter"] == "ngram"
    assert parameters["speculate.k"] == "[1, 2, 4, 8]"
    tags = dict(_query(database, "SELECT key, value FROM tags WHERE run_uuid = ?", run))  # type: ignore[arg-type]
    assert {"machine", "model", "git.commit", "git.dirty", "command", "host", "pid", "packages.sha256"} <= tags.keys()
    artifacts = next((root / "mlflow" / "artifacts").rglob(f"{run}/artifacts"))
    assert (artifacts / "report.html").is_file()
    assert (artifacts / "figures" / "acceptance.svg").is_file()
    assert (artifacts / "params.yaml").read_bytes() == (root / "params.yaml").read_bytes()


def test_a_result_is_logged_once_and_a_new_one_beside_it(root: Path, database: Path) -> None:
    assert project(root)[1] == publish.Outcome(logged=6, known=0)
    assert project(root)[1] == publish.Outcome(logged=0, known=6)
    changed = reported.results()
    changed.speculative[0]["speedup"] = 1.2345
    workspace.write_results(root, changed)
    assert project(root)[1] == publish.Outcome(logged=1, known=5)
    assert set(_results_logged(database).values()) == {1}


def test_nothing_new_means_that_mlflow_is_not_even_imported(root: Path, database: Path) -> None:
    project(root)
    script = (
        "import sys; from pathlib import Path; from breakeven.tracking.project import project; "
        "print(project(Path.cwd())[1]); print([m for m in ('mlflow', 'torch', 'sqlalchemy') if m in sys.modules])"
    )
    done = workspace.run(root, sys.executable, "-c", script)
    assert done.stdout == "Outcome(logged=0, known=6)\n[]\n", done.stderr


def test_a_deleted_database_is_rebuilt(root: Path, database: Path) -> None:
    """The fast path must not believe a marker beside a database that is gone."""
    project(root)
    database.unlink()
    # A process of its own, as in life: MLflow's connections outlive the file within one.
    assert "6 runs logged" in _track(root).stdout
    assert set(_results_logged(database).values()) == {1}


def test_another_prefix_is_another_set_of_experiments(root: Path, database: Path) -> None:
    project(root)
    workspace.write_results(root, reported.results(config=reported.config(track__experiment_prefix="other_one")))
    assert project(root)[1] == publish.Outcome(logged=6, known=0)
    assert set(_results_logged(database).values()) == {2}


def test_an_interrupted_run_counts_as_not_logged_and_a_deleted_one_as_logged(root: Path, database: Path) -> None:
    summary, _ = project(root)
    ngram, exit_ = (summary["results"][f"speculative/{name}"] for name in ("ngram", "early_exit"))
    connection = sqlite3.connect(database)
    with connection:
        sql = "UPDATE runs SET {} WHERE run_uuid = (SELECT run_uuid FROM tags WHERE key = 'result_id' AND value = ?)"
        connection.execute(sql.format("status = 'RUNNING'"), (ngram,))
        connection.execute(sql.format("lifecycle_stage = 'deleted'"), (exit_,))
    connection.close()
    assert project(root)[1] == publish.Outcome(logged=1, known=5)
    assert _results_logged(database)[ngram] == 1


def test_two_processes_on_a_fresh_machine_neither_corrupt_nor_duplicate(root: Path) -> None:
    """MLflow's own start-up corrupts a fresh SQLite file for good when two processes meet on it."""
    processes = [workspace.start(root, sys.executable, TRACK) for _ in range(3)]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    database = root / "mlflow" / "mlflow.db"
    assert sorted(_results_logged(database).values()) == [1] * 6
    names = {name for (name,) in _query(database, "SELECT name FROM experiments")}
    assert names == {"Default", "breakeven/kv", "breakeven/speculative"}
    in_default = _query(
        database, "SELECT COUNT(*) FROM runs JOIN experiments USING (experiment_id) WHERE experiments.name = 'Default'"
    )
    assert in_default == [(0,)]
    assert sum("6 runs logged" in output for output in outputs) == 1


def test_a_sweep_marks_results_that_were_there_before(
    root: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(root)
    monkeypatch.setenv(provenance.SWEEP_VARIABLE, "abc123")
    assert project(root)[1] == publish.Outcome(logged=0, known=6)
    tagged = _query(database, "SELECT COUNT(*) FROM tags WHERE key = 'sweep.abc123'")
    assert tagged == [(6,)]
    changed = reported.results()
    changed.speculative[0]["speedup"] = 1.2345
    workspace.write_results(root, changed)
    assert project(root)[1].logged == 1
    assert len(_query(database, "SELECT value FROM tags WHERE key = 'sweep_id' AND value = 'abc123'")) == 1


def test_a_database_in_use_is_a_clear_error_and_nothing_is_lost(
    root: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breakeven.tracking.store.BUSY_S", 0.2)
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TrackingError, match="in use by another program.*reports/"):
        project(root)
    holder.execute("ROLLBACK")
    holder.close()
    assert project(root)[1].logged == 6


def test_a_database_of_a_newer_mlflow_is_left_alone(root: Path, database: Path) -> None:
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    connection.close()
    before = database.read_bytes()
    with pytest.raises(TrackingError, match="newer MLflow"):
        project(root)
    assert database.read_bytes() == before


@pytest.mark.parametrize("content", [b"this is no database, but long enough to be read as one" * 40, b""])
def test_a_damaged_database_is_a_clear_error(root: Path, content: bytes) -> None:
    (root / "mlflow").mkdir()
    (root / "mlflow" / "mlflow.db").write_bytes(content)
    with pytest.raises(TrackingError, match="Move it away"):
        project(root)
    assert (root / "mlflow" / "mlflow.db").read_bytes() == content


def test_a_failing_disk_is_a_clear_error_and_the_run_is_closed(
    root: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_artifact", full)
        with pytest.raises(TrackingError, match="disk is full"):
            project(root)
    assert _query(database, "SELECT DISTINCT status FROM runs") == [("FAILED",)]
    assert project(root)[1].logged == 6


def test_a_killed_creation_leaves_nothing_that_is_taken_for_a_database(root: Path) -> None:
    (root / "mlflow").mkdir()
    (root / "mlflow" / ".mlflow.db.new").write_bytes(b"half")
    assert project(root)[1].logged == 6
    assert sorted(file.name for file in (root / "mlflow").iterdir()) == ["artifacts", "mlflow.db", "writers.lock"]


_SLOW_TRACK = """
import sys, time
from mlflow import MlflowClient
MlflowClient.log_artifact = lambda *a: (open("opened", "w").close(), time.sleep(120))
sys.path.insert(0, {folder!r})
import track
from breakeven.stage import run
run(track.main)
"""


def _interrupted(root: Path, signum: signal.Signals) -> int:
    script = _SLOW_TRACK.format(folder=str(workspace.REPOSITORY / "pipelines"))
    process = workspace.start(root, sys.executable, "-c", script)
    deadline = time.monotonic() + 120
    while not (root / "opened").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    process.communicate(timeout=60)
    return process.returncode


def test_sigterm_closes_the_run_and_the_next_track_logs_it(root: Path, database: Path) -> None:
    assert _interrupted(root, signal.SIGTERM) == 143
    assert _query(database, "SELECT status FROM runs") == [("KILLED",)]
    assert project(root)[1].logged == 6


def test_reap_closes_what_sigkill_left_running_and_nothing_that_lives(root: Path, database: Path) -> None:
    assert _interrupted(root, signal.SIGKILL) == -9
    project(root)
    connection = sqlite3.connect(database)
    with connection:  # a run of this very process, one of another host, one of a stranger
        alive, elsewhere, stranger = (run for (run,) in connection.execute(
            "SELECT run_uuid FROM runs WHERE status = 'FINISHED' LIMIT 3"
        ).fetchall())  # fmt: skip
        connection.execute(
            "UPDATE runs SET status = 'RUNNING' WHERE run_uuid IN (?, ?, ?)", (alive, elsewhere, stranger)
        )
        connection.execute("UPDATE tags SET value = 'mars' WHERE key = 'host' AND run_uuid = ?", (elsewhere,))
        connection.execute("DELETE FROM tags WHERE key = 'pid' AND run_uuid = ?", (stranger,))
    connection.close()
    said = reap.reap()
    assert sorted(line.split()[0] for line in said) == ["closed", "left", "left", "left"]
    running = {run for (run,) in _query(database, "SELECT run_uuid FROM runs WHERE status = 'RUNNING'")}
    assert running == {alive, elsewhere, stranger}
    assert len(_query(database, "SELECT run_uuid FROM runs WHERE status = 'KILLED'")) == 1


def test_a_recycled_process_number_is_not_the_old_process() -> None:
    owner = provenance.process()
    assert not provenance.is_gone(owner)
    assert provenance.is_gone({**owner, "pid_started": "12345.0"})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert provenance.is_gone({**owner, "pid": str(ended.pid)})


def test_an_experiment_in_a_temporary_copy_logs_to_the_repository_that_stays(
    root: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    workspace.write_results(copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(root))
    monkeypatch.setenv("DVC_EXP_NAME", "gutta-tirl")
    assert project(copy)[1].logged == 6
    assert set(_results_logged(database).values()) == {1}
    assert not (copy / "mlflow").exists()
    assert _query(database, "SELECT DISTINCT value FROM tags WHERE key = 'dvc.experiment'") == [("gutta-tirl",)]


def test_uncommitted_code_is_marked_and_attached(root: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root.parent))
    (root / ".gitignore").write_text("/mlflow/\n/build/\n", encoding="utf-8")
    workspace.commit_all(root)
    (root / "conf" / "config.yaml").write_text("new: 1\n", encoding="utf-8")
    project(root)
    assert _query(database, "SELECT DISTINCT value FROM tags WHERE key = 'git.dirty'") == [("true",)]
    patches = list((root / "mlflow" / "artifacts").rglob("changes.patch"))
    assert len(patches) == 6
    assert "+new: 1" in patches[0].read_text(encoding="utf-8")


def test_an_unwritable_database_is_a_clear_error(root: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite says of a file without write permission (which root, who may run this test, never meets)."""

    def readonly(_: Path) -> str:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr("breakeven.tracking.store._revision", readonly)
    with pytest.raises(TrackingError, match=r"cannot be written; fix its permissions.*reports/"):
        project(root)


def test_a_folder_that_cannot_be_made_is_a_clear_error(root: Path) -> None:
    (root / "mlflow").write_text("a file in the way", encoding="utf-8")
    with pytest.raises(TrackingError, match=r"mlflow\.db.*reports/"):
        project(root)
