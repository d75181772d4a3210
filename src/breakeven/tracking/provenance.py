"""Where a result comes from: commit, uncommitted changes, command, package versions, process.

MLflow records the commit but not whether the tree was clean, so both are recorded here, with the patch.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
from pathlib import Path
from typing import TypedDict

import psutil

from breakeven.errors import BreakevenError
from breakeven.io import sha256_json
from breakeven.paths import workspace

# Files that the pipeline itself rewrites: they follow from the code and the parameters, which are recorded anyway.
GENERATED = ("params.yaml", "dvc.lock", "reports")
# Untracked files outside these change no result.
_SOURCES = ("src", "pipelines", "conf", "dvc.yaml", "pyproject.toml")
SWEEP_VARIABLE = "BREAKEVEN_SWEEP_ID"


class Process(TypedDict):
    """What tells whether the process that opened a run is still alive."""

    host: str
    pid: str
    pid_started: str  # Unix seconds; a recycled pid has another start


def git(*arguments: str, folder: Path | None = None) -> str:
    """Return what a git command prints.

    Raises:
        BreakevenError: no git, no repository, or the command failed.
    """
    command = ["git", "-C", str(folder or workspace()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, errors="replace")
    except FileNotFoundError as error:
        raise BreakevenError("git is not installed; experiments and sweeps need it.") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1] if error.stderr.strip() else f"exit code {error.returncode}"
        raise BreakevenError(f"`git {arguments[0]}` failed: {reason}") from error
    return done.stdout


def commit() -> str:
    """Return the 40 hex digits of HEAD; empty outside a git repository (a release archive)."""
    try:
        return git("rev-parse", "HEAD").strip()
    except BreakevenError:
        return ""


def patch() -> str:
    """Return every uncommitted change that may have changed a result, as a patch; empty when the tree is clean."""
    try:
        tracked = git("diff", "HEAD", "--binary", "--", ".", *(f":(exclude){path}" for path in GENERATED))
        untracked = git("ls-files", "--others", "--exclude-standard", "--", *_SOURCES).splitlines()
    except BreakevenError:
        return ""
    return tracked + "".join(_as_patch(name) for name in untracked)


def _as_patch(name: str) -> str:
    """Return an untracked file as a patch that creates it (`git diff --no-index` exits with 1: they differ)."""
    command = ["git", "-C", str(workspace()), "diff", "--no-index", "--binary", "--", os.devnull, name]
    return subprocess.run(command, capture_output=True, text=True, check=False, errors="replace").stdout


def versions() -> dict[str, str]:
    """Return the version of every installed distribution, by name."""
    return {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    }


def process() -> Process:
    """Describe this process."""
    return Process(host=platform.node(), pid=str(os.getpid()), pid_started=f"{psutil.Process().create_time():.2f}")


def is_gone(owner: Process) -> bool:
    """Say whether a process of this host has ended (its pid may meanwhile belong to another)."""
    try:
        return abs(psutil.Process(int(owner["pid"])).create_time() - float(owner["pid_started"])) > 1.0
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def sweep_id() -> str:
    """Return the id of the sweep that started this process; empty outside one."""
    return os.environ.get(SWEEP_VARIABLE, "")


def command() -> str:
    """Return the `dvc` command that this process runs under, as a user would type it again; else its own."""
    own = psutil.Process()
    for candidate in own.parents():
        try:
            line = candidate.cmdline()
        except psutil.Error:
            continue
        position = next((i for i, word in enumerate(line) if Path(word).name == "dvc"), None)
        if position is not None:
            return shlex.join(["dvc", *line[position + 1 :]])
    return shlex.join(own.cmdline())


def tags() -> dict[str, str]:
    """Return the tags of every run: enough to find and repeat what made it."""
    changes = patch()
    owner = process()
    described = {
        "git.commit": commit() or "none",
        "git.dirty": str(bool(changes)).lower(),
        "command": command(),
        "dvc.experiment": os.environ.get("DVC_EXP_NAME", ""),
        "sweep_id": sweep_id(),
        "packages.sha256": sha256_json(versions()),
        "host": owner["host"],
        "pid": owner["pid"],
        "pid_started": owner["pid_started"],
    }
    return {key: value for key, value in described.items() if value}
