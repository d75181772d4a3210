"""The track stage: what is in the result files and not yet in MLflow goes there.

A stage that DVC restores from its cache never executes, so logging inside stages would leave holes. Projecting the
files leaves none, and a deleted database is rebuilt by the next `dvc repro`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from breakeven.tracking import files, projection, provenance
from breakeven.tracking.projection import RunRecord
from breakeven.tracking.publish import Outcome, publish
from breakeven.tracking.store import Store, resolve


def project(root: Path) -> tuple[dict[str, Any], Outcome]:
    """Log the results of a workspace.

    Returns:
        What build/track.json holds (content-stable: which results, by run), and what was done.

    Raises:
        BreakevenError: a result file is missing, or the store cannot be used.
    """
    results = files.read(root)
    records = projection.records(results)
    store = resolve(results.config.track)
    logged = {f"{record.kind}/{record.subject}": record.result_id for record in records}
    summary = {"schema_version": 1, "results": logged}
    sweep = provenance.sweep_id()
    prefix = results.config.track.experiment_prefix
    if everything_known(store, prefix, records, sweep):
        return summary, Outcome(logged=0, known=len(records))
    outcome = publish(
        store,
        prefix,
        records,
        provenance.tags(),
        files.artifacts(root),
        provenance.patch(),
    )
    return summary, outcome


def everything_known(store: Store, prefix: str, records: list[RunRecord], sweep_id: str) -> bool:
    """Say, without importing MLflow (3 s), that every result is logged and tagged with this sweep."""
    wanted = {record.result_id for record in records}
    known = store.known_results(prefix)
    if known is None or not wanted <= known:
        return False
    if not sweep_id:
        return True
    tagged = store.results_in_sweep(prefix, sweep_id)
    return tagged is not None and wanted <= tagged
