"""Logging run records to MLflow: each result once, each run opened and closed in one block."""

from __future__ import annotations

import contextlib
import getpass
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.tracking.projection import Point, RunRecord
from breakeven.tracking.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MAX_ENTITIES = 1000  # of one log_batch call
_MAX_TEXT = 6000  # MLflow cuts longer parameters
Artifacts = Sequence[tuple[Path, str | None]]


@dataclass(frozen=True)
class Outcome:
    """What one projection did."""

    logged: int
    known: int


def publish(
    store: Store, prefix: str, records: Sequence[RunRecord], tags: Mapping[str, str], artifacts: Artifacts, patch: str
) -> Outcome:
    """Log every record that the store does not hold yet.

    Args:
        store: where to.
        prefix: experiments are named prefix/kind.
        records: the runs of this workspace.
        tags: provenance, the same for all.
        artifacts: files to attach to every run.
        patch: uncommitted changes, attached as changes.patch; may be empty.

    Raises:
        TrackingError: the store cannot be used; runs logged so far are complete.
    """
    logged = known = 0
    with store.writing() as client:
        for kind in dict.fromkeys(record.kind for record in records):
            experiment = _experiment(client, f"{prefix}/{kind}", store.artifacts)
            for record in (record for record in records if record.kind == kind):
                existing = _find(client, experiment, record.result_id)
                if existing is None:
                    _log(client, experiment, record, tags, artifacts, patch)
                    logged += 1
                else:
                    _tag_sweep(client, existing, record, tags)
                    known += 1
    return Outcome(logged, known)


def _experiment(client: MlflowClient, name: str, artifacts: Path | None) -> str:
    """Return the id of an experiment, created or restored; runs are always given an id, never an active experiment."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        location = str(artifacts / name) if artifacts is not None else None
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            # Another machine was first (shared server or database).
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _find(client: MlflowClient, experiment: str, result_id: str) -> str | None:
    """Return the finished run of a result; deleted ones count, an interrupted one does not."""
    from mlflow.entities import ViewType

    query = f"tags.result_id = '{result_id}' and attributes.status = 'FINISHED'"
    runs = client.search_runs([experiment], query, run_view_type=ViewType.ALL, max_results=1)
    return str(runs[0].info.run_id) if runs else None


def _tag_sweep(client: MlflowClient, run_id: str, record: RunRecord, tags: Mapping[str, str]) -> None:
    """Note on a run of an earlier sweep that this one uses it too."""
    sweep = tags.get("sweep_id")
    if sweep and client.get_run(run_id).info.lifecycle_stage == "active":
        client.set_tag(run_id, f"sweep.{sweep}", record.result_id)


def _log(
    client: MlflowClient,
    experiment: str,
    record: RunRecord,
    tags: Mapping[str, str],
    artifacts: Artifacts,
    patch: str,
) -> None:
    own = {**tags, **record.tags, "result_id": record.result_id}
    if "sweep_id" in tags:
        own[f"sweep.{tags['sweep_id']}"] = record.result_id
    with _open_run(client, experiment, record.name, own) as run_id:
        _log_params(client, run_id, record.params)
        _log_points(client, run_id, record.points)
        for file, folder in artifacts:
            client.log_artifact(run_id, str(file), folder)
        if patch:
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / "changes.patch"
                file.write_text(patch, encoding="utf-8")
                client.log_artifact(run_id, str(file))


@contextlib.contextmanager
def _open_run(client: MlflowClient, experiment: str, name: str, tags: Mapping[str, str]) -> Iterator[str]:
    """Open a run and close it whatever happens: FINISHED, FAILED, or KILLED by a signal.

    The tags are set at creation, so that a run that even SIGKILL left open names its process (`breakeven reap`).
    """
    ours = {
        **tags,
        "mlflow.source.name": "pipelines/track.py",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": getpass.getuser(),
    }
    if tags.get("git.commit", "none") != "none":
        ours["mlflow.source.git.commit"] = tags["git.commit"]
    run_id = str(client.create_run(experiment, tags=ours, run_name=name).info.run_id)
    status = "KILLED"
    try:
        yield run_id
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        if status == "FINISHED":
            client.set_terminated(run_id, status=status)
        else:
            with contextlib.suppress(Exception):  # the first error is the one to see
                client.set_terminated(run_id, status=status)


def _log_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    every = [
        Param(key, value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…") for key, value in params.items()
    ]
    for start in range(0, len(every), 100):
        client.log_batch(run_id, params=every[start : start + 100])


def _log_points(client: MlflowClient, run_id: str, points: Sequence[Point]) -> None:
    """Log in batches: one call a metric takes 20 ms on SQLite, a batch of a thousand half a second."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    every = [Metric(point.key, point.value, now, point.step) for point in points]
    for start in range(0, len(every), _MAX_ENTITIES):
        client.log_batch(run_id, metrics=every[start : start + _MAX_ENTITIES])
