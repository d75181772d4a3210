"""The MLflow store: where it is, and opening it so that no race, crash or version can spoil it.

MLflow's own start-up migrates a fresh SQLite file in every process that meets it, and two at once corrupt it for good.
Here a fresh database is built aside under a lock and renamed; nobody ever sees half of one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from breakeven.config import TrackConfig
from breakeven.errors import BreakevenError
from breakeven.paths import home, mlflow_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient

BUSY_S = 20.0
_NOTHING_LOST = "Nothing is lost: the results are under reports/; `dvc repro` logs them when this is mended."
_SQLITE = "sqlite:///"


class TrackingError(BreakevenError):
    """The MLflow store cannot be used now; results are safe in their files."""


@dataclass(frozen=True)
class Store:
    """One MLflow store.

    Attributes:
        uri: what MLflow is given.
        database: the SQLite file, or None for a server or another database.
        artifacts: absolute folder of artifacts, or None where a tracking server decides.
        lock: file that serialises this machine's writers.
    """

    uri: str
    database: Path | None
    artifacts: Path | None
    lock: Path

    def known_results(self, prefix: str) -> set[str] | None:
        """Return the ids of all results logged under an experiment prefix, read from SQLite without importing MLflow.

        Deleted runs count: who deleted one does not want it back. None: cannot tell this way.
        """
        return self._tagged("result_id", prefix, finished=True)

    def results_in_sweep(self, prefix: str, sweep_id: str) -> set[str] | None:
        """Return the ids of the results that a sweep has already tagged; None: cannot tell without MLflow."""
        return self._tagged(f"sweep.{sweep_id}", prefix, finished=False)

    def _tagged(self, key: str, prefix: str, *, finished: bool) -> set[str] | None:
        if self.database is None:
            return None
        if not self.database.is_file():
            return set()
        query = (
            "SELECT tags.value FROM tags JOIN runs USING (run_uuid) JOIN experiments USING (experiment_id) "
            "WHERE tags.key = ? AND experiments.name LIKE ? ESCAPE '!'"
        )
        escaped = prefix.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        try:
            reader = sqlite3.connect(f"{self.database.as_uri()}?mode=ro", uri=True, timeout=2)
            with contextlib.closing(reader):
                if finished:
                    query += " AND runs.status = 'FINISHED'"
                rows = reader.execute(query, (key, f"{escaped}/%")).fetchall()
        except sqlite3.Error:
            return None  # locked, damaged or another schema: MLflow, or `prepare_database`, will say
        return {str(value) for (value,) in rows}

    @contextlib.contextmanager
    def writing(self) -> Iterator[MlflowClient]:
        """Open the store for writing, one process of this machine at a time.

        Raises:
            TrackingError: the database is locked, unwritable, damaged or written by a newer MLflow; no server.
        """
        with _refusals(self):
            self.lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.lock):
                yield self.open()

    def open(self) -> MlflowClient:
        """Return a client; the caller holds the lock.

        Raises:
            TrackingError: see `writing`.
        """
        mlflow_is_quiet()
        if self.database is not None:
            prepare_database(self.database, self.artifacts or self.database.parent / "artifacts")
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        client.search_experiments(max_results=1)  # connects: a missing server is found here, not in the middle
        return client


def resolve(track: TrackConfig) -> Store:
    """Return the store that the configuration names.

    SQLite paths are made absolute: a `dvc exp run --temp` works in a folder that is deleted afterwards.

    Raises:
        TrackingError: a kind of store that MLflow no longer has.
    """
    folder = mlflow_folder()
    uri = track.tracking_uri or f"{_SQLITE}{folder / 'mlflow.db'}"
    lock = folder / "writers.lock"
    if uri.startswith(_SQLITE):
        database = (home() / uri.removeprefix(_SQLITE)).resolve()
        return Store(f"{_SQLITE}{database}", database, database.parent / "artifacts", lock)
    if uri.startswith(("http://", "https://", "databricks")):
        return Store(uri, None, None, lock)
    if "://" not in uri or uri.startswith("file:"):
        raise TrackingError(
            f"track.tracking_uri is {uri!r}. MLflow has no file store any more; use sqlite:///path/to/mlflow.db, "
            "postgresql://..., http://... or null."
        )
    # SQLAlchemy 2.1 takes plain postgresql:// for psycopg 3.
    uri = uri.replace("postgresql://", "postgresql+psycopg2://", 1).replace("postgres://", "postgresql+psycopg2://", 1)
    return Store(uri, None, folder / "artifacts", lock)


def mlflow_is_quiet() -> None:
    """Switch MLflow's telemetry and chatter off, before it is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def prepare_database(database: Path, artifacts: Path) -> None:
    """Make sure that the SQLite file is there, usable and of this MLflow's schema; the caller holds the lock.

    Raises:
        TrackingError: see `Store.writing`.
    """
    if not database.exists():
        _create(database, artifacts)
        return
    revision = _revision(database)
    from mlflow.store.db import utils

    head = utils._get_latest_schema_revision()
    if revision == head:
        return
    if revision not in _known_revisions():
        import mlflow

        raise TrackingError(
            f"{database} has schema {revision}, which MLflow {mlflow.__version__} does not know: a newer MLflow wrote "
            f"it. Install that version, or move the file away and the runs are rebuilt. {_NOTHING_LOST}"
        )
    shutil.copy2(database, database.with_name(f"{database.name}.before-{head}"))
    utils._upgrade_db(utils.create_sqlalchemy_engine_with_retry(f"{_SQLITE}{database}"))


def _create(database: Path, artifacts: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    aside = database.with_name(f".{database.name}.new")
    aside.unlink(missing_ok=True)  # of a process that was killed here
    database.parent.mkdir(parents=True, exist_ok=True)
    try:
        SqlAlchemyStore(f"{_SQLITE}{aside}", str(artifacts))
        # MLflow keeps connections by name; one to this name would later mean the renamed file.
        SqlAlchemyStore._engine_map.pop(f"{_SQLITE}{aside}").dispose()
        aside.replace(database)
    finally:
        aside.unlink(missing_ok=True)


def _revision(database: Path) -> str:
    """Return the schema revision, after making sure that the file can be written now."""
    with contextlib.closing(sqlite3.connect(database, timeout=BUSY_S, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE breakeven_probe (x)")
        connection.execute("ROLLBACK")
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else ""


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config

    return {script.revision for script in ScriptDirectory.from_config(_get_alembic_config("")).walk_revisions()}


@contextlib.contextmanager
def _refusals(store: Store) -> Iterator[None]:
    """Turn what SQLite, the disk and MLflow raise into one refusal."""
    try:
        yield
    except BreakevenError:
        raise
    except (sqlite3.Error, OSError) as error:
        raise TrackingError(_explain(store, str(error))) from error
    except ModuleNotFoundError as error:
        reason = f"the database driver {error.name} is not installed: `pip install {error.name}-binary`"
        raise TrackingError(f"track.tracking_uri needs one more package: {reason}. {_NOTHING_LOST}") from error
    except Exception as error:
        # Known by module, so that the fast path need not import MLflow.
        if type(error).__module__.split(".")[0] not in {"mlflow", "sqlalchemy", "requests", "urllib3", "alembic"}:
            raise
        raise TrackingError(_explain(store, str(error))) from error


def _explain(store: Store, reason: str) -> str:
    place = store.database or store.uri
    lowered = reason.lower()
    if "locked" in lowered:
        return f"{place} is in use by another program and stayed locked for {BUSY_S:.0f} s. {_NOTHING_LOST}"
    if "readonly" in lowered or "unable to open" in lowered or "permission" in lowered:
        return f"{place} cannot be written; fix its permissions. {_NOTHING_LOST}"
    if "full" in lowered or "no space" in lowered:
        return f"{place} cannot grow: the disk is full. {_NOTHING_LOST}"
    if "not a database" in lowered or "malformed" in lowered or "no such table" in lowered:
        return f"{place} is damaged ({reason}). Move it away: `dvc repro` builds it anew. {_NOTHING_LOST}"
    return f"MLflow at {place} refused: {reason.splitlines()[0] if reason else 'no reason given'}. {_NOTHING_LOST}"
