"""One sweep job: a child process `dvc exp run --temp`, in a process group of its own.

DVC gives skipping, the shared cache and a workspace copy; the process gives isolation: a job that is killed is a
return code. The name follows from what is asked, so a finished job is recognised by the experiment of that name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import typer
from filelock import FileLock

from breakeven import hardware, io
from breakeven.errors import BreakevenError
from breakeven.tracking import provenance

_STANDALONE = Path(".dvc/tmp/exps/standalone")
_INFO_FILES = Path(".dvc/tmp/exps/run")
_STARTED = "Reproducing experiment"
_POLL_S = 0.1
_GRACE_S = 20.0
_ABANDONED_AFTER_S = 600.0


@dataclass(frozen=True)
class JobResult:
    """How one job ended."""

    number: int
    name: str
    overrides: list[str]
    state: str  # finished | skipped | failed | killed
    returncode: int
    seconds: float
    log: str

    @property
    def ok(self) -> bool:
        """Whether the experiment of this job exists now."""
        return self.state in {"finished", "skipped"}

    def save(self, folder: Path) -> None:
        """Write the result where the sweep collects it, whichever machine ran the job."""
        io.write_json(folder / "job.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> JobResult:
        """Read what `save` wrote."""
        return cls(**io.read_json(folder / "job.json"))


def name_of(overrides: Sequence[str]) -> str:
    """Return the experiment name of a job: readable words, then a digest of everything that the result depends on.

    The digest covers the overrides, the commit, uncommitted changes and the machine: a timing of another machine
    is not this job's result.
    """
    digest = io.sha256_json([sorted(overrides), provenance.commit(), provenance.patch(), hardware.identity()])
    # speculate.k=[1,2] reads as k-1-2.
    short = [re.sub(r"^[+~]*(\w+[./])*", "", override) for override in sorted(overrides)]
    words = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(short))[:60].strip("-")
    return f"{words or 'default'}-{digest[:10]}"


def exists(name: str, root: Path) -> bool:
    """Say whether an experiment of this name is saved (DVC keeps each as a git reference)."""
    references = provenance.git("for-each-ref", "--format=%(refname)", "refs/exps", folder=root).splitlines()
    return any(reference.rsplit("/", 1)[-1] == name for reference in references)


def run_job(number: int, overrides: Sequence[str], root: Path, folder: Path, sweep_id: str) -> JobResult:
    """Run one job to its end, unless its experiment exists already.

    Args:
        number: the job's number in the sweep.
        overrides: Hydra overrides of this job.
        root: the repository.
        folder: where log and result go.
        sweep_id: told to the track stage, which tags the MLflow runs with it.
    """
    name = name_of(overrides)
    log = folder / "job.log"
    folder.mkdir(parents=True, exist_ok=True)
    # Two sweeps that share a job: the second one waits and then finds it finished.
    with FileLock(root / ".dvc" / "tmp" / f"breakeven-{name}.lock"):
        if exists(name, root):
            typer.echo(f"[{number}] {' '.join(overrides)}: finished before, as {name}")
            result = JobResult(number, name, list(overrides), "skipped", 0, 0.0, str(log))
        else:
            typer.echo(f"[{number}] {' '.join(overrides)}: {log}")
            result = _run_new(number, name, overrides, root, log, sweep_id)
    result.save(folder)
    return result


def _run_new(number: int, name: str, overrides: Sequence[str], root: Path, log: Path, sweep_id: str) -> JobResult:
    started = time.monotonic()
    returncode = 0
    # A second attempt: DVC processes share one stash, and one that ends may take over a job that just starts; its
    # own process then exits with 0 and without a result.
    for _ in range(2):
        returncode = _run_child(number, name, overrides, root, log, sweep_id)
        if returncode != 0 or exists(name, root):
            break
    finished = exists(name, root)
    if not finished:
        remove_workspace(name, root)
    killed = returncode < 0 or returncode in {128 + signal.SIGKILL, 128 + signal.SIGTERM}
    state = "finished" if finished else "killed" if killed else "failed"
    return JobResult(number, name, list(overrides), state, returncode, time.monotonic() - started, str(log))


def _run_child(number: int, name: str, overrides: Sequence[str], root: Path, log: Path, sweep_id: str) -> int:
    command = [sys.executable, "-m", "dvc", "exp", "run", "--temp", "-n", name]
    for override in overrides:
        command += ["-S", override]
    # The stages run in a copy of the repository: PYTHONPATH makes them import that copy's code, not the installed one.
    environment = {
        **_identity(root),
        **os.environ,
        provenance.SWEEP_VARIABLE: sweep_id,
        "PYTHONPATH": os.pathsep.join(filter(None, ["src", os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }
    with FileLock(root / ".dvc" / "tmp" / "breakeven-start.lock") as start, log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        tail = threading.Thread(target=_echo, args=(log, child, f"[{number}] "), daemon=True)
        tail.start()
        try:
            # One at a time until DVC has taken the job off its shared stash (see `_run_new`).
            while child.poll() is None and _STARTED.encode() not in log.read_bytes():
                time.sleep(_POLL_S)
            start.release()
            return child.wait()
        finally:
            end_group(child)
            tail.join(timeout=1.0)


def _identity(root: Path) -> dict[str, str]:
    """Return a git identity for where there is none (a container): DVC commits each experiment and needs one."""
    try:
        provenance.git("var", "GIT_COMMITTER_IDENT", folder=root)
        return {}
    except BreakevenError:
        roles = ("GIT_AUTHOR", "GIT_COMMITTER")
        return {f"{role}_NAME": "breakeven" for role in roles} | {
            f"{role}_EMAIL": "breakeven@localhost" for role in roles
        }


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything it started: politely, so that stages clean up, then for good.

    A `dvc` that was killed leaves its stage running; without this it would go on loading the machine.
    """
    for signum, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        try:
            os.killpg(child.pid, signum)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and _group_lives(child):
            time.sleep(_POLL_S)
    child.wait()


def _group_lives(child: subprocess.Popen[bytes]) -> bool:
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _echo(log: Path, child: subprocess.Popen[bytes], prefix: str) -> None:
    """Copy a growing log to this terminal, line by line, until the child ends."""
    with log.open("r", encoding="utf-8", errors="replace") as stream:
        while True:
            ended = child.poll() is not None
            for line in stream:
                typer.echo(prefix + line.rstrip("\n"))
            if ended:
                return
            time.sleep(_POLL_S)


def remove_workspace(name: str, root: Path) -> None:
    """Remove the repository copy that a job left behind when it was killed."""
    for info_file in (root / _INFO_FILES).glob("*/*.run"):
        info = _read_info(info_file)
        folder = Path(str(info.get("root_dir", "")))
        if info.get("name") == name and folder.parent == (root / _STANDALONE).resolve():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(info_file.parent, ignore_errors=True)


def remove_abandoned(root: Path) -> None:
    """Remove repository copies of jobs whose sweep was killed: old, and no process works in them."""
    copies = [folder for folder in (root / _STANDALONE).glob("tmp*") if folder.is_dir()]
    if not copies:
        return
    at_work = {_working_folder(process) for process in psutil.process_iter()}
    for folder in copies:
        lives = any(used is not None and used.is_relative_to(folder.resolve()) for used in at_work)
        if not lives and time.time() - folder.stat().st_mtime > _ABANDONED_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)


def _working_folder(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd())
    except (psutil.Error, OSError):
        return None


def _read_info(file: Path) -> dict[str, Any]:
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}
