"""`breakeven doctor`: what the pipeline finds here, each line with the mend when something is wrong."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import OmegaConf
from packaging.requirements import Requirement

from breakeven import config, guard, hardware
from breakeven.config import HardwareConfig
from breakeven.errors import BreakevenError, HardwareError
from breakeven.paths import home, model_store, workspace
from breakeven.tracking import provenance
from breakeven.tracking.store import resolve


def lines() -> Iterator[str]:
    """Yield the report line by line.

    Raises:
        BreakevenError: the current folder is not inside a Breakeven repository.
    """
    root = workspace()
    yield f"python       {platform.python_version()} ({sys.executable})"
    yield f"packages     {_packages()}"
    yield f"repository   {root}, {_revision()}"
    yield f"parameters   {_parameters(root)}"
    yield (
        f"machine      {hardware.identity()}: {hardware.cpu_model()}, {hardware.physical_cores()} cores, "
        f"{hardware.ram_gib()} GiB, {' '.join(hardware.cpu_features()) or 'no bfloat16 instructions'}"
    )
    for file in sorted((root / "conf" / "hardware").glob("*.yaml")):
        yield f"  {file.stem:<11}{_target(file)}"
    yield f"models       {_models()}"
    yield f"disk         {shutil.disk_usage(home()).free / 2**30:.1f} GiB free at {home()}"
    yield f"mlflow       {_mlflow(root)}"


def _packages() -> str:
    """Compare what is installed with the pins of this package."""
    wrong = []
    for line in importlib.metadata.requires("breakeven") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} is {installed}, not {requirement.specifier}")
    named = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "dvc", "mlflow")
    )
    return f"{'; '.join(wrong)}: run `make env`" if wrong else f"as pinned ({named})"


def _revision() -> str:
    commit = provenance.commit()
    if not commit:
        return "not a git repository: `dvc repro` works, experiments and sweeps do not"
    return f"commit {commit[:12]}{' with uncommitted changes' if provenance.patch() else ''}"


def _parameters(root: Path) -> str:
    try:
        passed = guard.check(root / "params.yaml")
    except BreakevenError as error:
        return f"refused: {error}"
    return f"experiment {passed['experiment']}: {passed['model']} on {passed['hardware']}, ready for `dvc repro`"


def _target(file: Path) -> str:
    """Say whether a hardware target is here."""
    try:
        values = OmegaConf.merge(OmegaConf.structured(HardwareConfig), OmegaConf.load(file))
        target = OmegaConf.to_object(values)
        assert isinstance(target, HardwareConfig)
        names = hardware.require(target)
    except HardwareError as error:
        return f"not here: {str(error).split(' Here: ', maxsplit=1)[0]}"
    return (
        f"here{': ' + ', '.join(names) if names else ''} ({target.dtype}, {hardware.resolve_threads(target)} threads)"
    )


def _models() -> str:
    """List the verified models that are downloaded, with their size."""
    folders = sorted(
        folder for folder in model_store().glob("*") if folder.is_dir() and not folder.name.startswith(".")
    )
    sizes = [sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in folders]
    found = [f"{folder.name} ({size / 1e6:.0f} MB)" for folder, size in zip(folders, sizes, strict=True)]
    return f"{', '.join(found) or 'none yet'} in {model_store()}"


def _mlflow(root: Path) -> str:
    """Say where the runs are and how many, without importing MLflow."""
    try:
        store = resolve(config.load(root / "params.yaml").track)
    except BreakevenError as error:
        return f"unknown: {error}"
    if store.database is None:
        return store.uri
    if not store.database.is_file():
        return f"no database yet; the track stage makes {store.database}"
    try:
        connection = sqlite3.connect(f"{store.database.as_uri()}?mode=ro", uri=True, timeout=2)
        with contextlib.closing(connection):
            counts = dict(connection.execute("SELECT status, COUNT(*) FROM runs GROUP BY status").fetchall())
    except sqlite3.Error as error:
        return f"{store.database} cannot be read: {error}"
    states = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no runs"
    hint = "; `breakeven reap` closes those whose process is gone" if counts.get("RUNNING") else ""
    return f"{store.database}: {states}{hint}"
