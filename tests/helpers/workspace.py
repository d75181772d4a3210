"""Throw-away workspaces: one with fabricated result files, and a real clone of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tests.helpers import reported

from breakeven import io
from breakeven.reporting.data import Results

REPOSITORY = Path(__file__).resolve().parents[2]


def write_results(root: Path, results: Results | None = None) -> Results:
    """Make `root` a workspace in which every stage but track has run."""
    results = results or reported.results()
    (root / "conf").mkdir(parents=True, exist_ok=True)
    (root / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    OmegaConf.save(OmegaConf.structured(results.config), root / "params.yaml")
    metrics = root / "reports" / "metrics"
    for name in ("speculative", "acceptance", "costs", "kv_error", "audits"):
        io.write_json(metrics / f"{name}.json", getattr(results, name))
    io.write_json(root / "reports" / "claims.json", results.claims)
    io.write_json(root / "build" / "hardware.json", results.hardware)
    io.write_json(root / "build" / "models.lock.json", results.lock)
    io.write_text(root / "reports" / "report.html", "<!doctype html><title>report</title>")
    io.write_text(root / "reports" / "figures" / "acceptance.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>")
    return results


def conf_only(root: Path) -> Path:
    """Make `root` a workspace with this repository's conf/ and nothing else: enough to compose and to guard."""
    shutil.copytree(REPOSITORY / "conf", root / "conf")
    (root / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    return root


def clone(destination: Path) -> Path:
    """Copy this working tree, uncommitted files included, into a fresh git repository with one commit."""
    listed = _git(REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        source, target = REPOSITORY / name, destination / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    commit_all(destination)
    return destination


def commit_all(root: Path) -> None:
    """Commit everything in `root`, making it a repository first."""
    if not (root / ".git").exists():
        _git(root, "init", "--quiet", "--initial-branch=main")
    _git(root, "add", "--all")
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    _git(root, *identity, "commit", "--quiet", "--allow-empty", "--message", "as it is")


def run(
    root: Path, *command: str, variables: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment in `root`, as a user of the clone would."""
    return subprocess.run(
        command,
        cwd=root,
        env=environment(root, variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start(
    root: Path, *command: str, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a command without waiting."""
    return subprocess.Popen(
        command,
        cwd=root,
        env=environment(root, variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def environment(root: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: this interpreter's tools, the clone's own code, no outer experiment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "BREAKEVEN_", "MLFLOW_"))}
    tools = str(Path(sys.executable).parent)
    sources = root / "src" / "breakeven"
    return {
        **kept,
        "PATH": os.pathsep.join([tools, kept.get("PATH", "")]),
        "PYTHONPATH": str((sources if sources.exists() else REPOSITORY / "src" / "breakeven").parent),
        "OMP_NUM_THREADS": "1",
        # No identity and no settings of whoever runs the tests.
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **(variables or {}),
    }


def _git(root: Path, *arguments: Sequence[str] | str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
