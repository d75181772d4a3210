"""Closing runs that stayed RUNNING: SIGKILL and a power cut leave no chance to close one."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from breakeven import config
from breakeven.paths import workspace
from breakeven.tracking import provenance
from breakeven.tracking.store import resolve

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def reap() -> list[str]:
    """Close every RUNNING run of this host whose process is gone; say what was done with each.

    Raises:
        TrackingError: the store cannot be used.
    """
    store = resolve(config.load(workspace() / "params.yaml").track)
    if store.database is not None and not store.database.exists():
        return ["no MLflow database yet"]
    with store.writing() as client:
        running = _running(client)
        return [_close(client, run) for run in running] or ["no run is RUNNING"]


def _running(client: MlflowClient) -> list[Run]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _close(client: MlflowClient, run: Run) -> str:
    tags, name = run.data.tags, f"{run.info.run_name} ({run.info.run_id})"
    try:
        owner = provenance.Process(host=tags["host"], pid=tags["pid"], pid_started=tags["pid_started"])
    except KeyError:
        return f"left {name}: it names no process"
    if owner["host"] != platform.node():
        return f"left {name}: it runs on {owner['host']}; reap it there"
    if not provenance.is_gone(owner):
        return f"left {name}: process {owner['pid']} is alive"
    client.set_terminated(run.info.run_id, status="KILLED")
    return f"closed {name}: process {owner['pid']} is gone"
