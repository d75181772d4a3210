"""Traps of make: a failure that ends with 0, a second run that installs again, the wrong Python, stages without it.

Every test runs the real Makefile in a folder of its own, with stand-ins for the programs that it calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "which", "sed", "awk", "touch", "rm", "find", "sort", "grep", "mv", "git", "cat", "env")
TARGETS = {"repro", "test", "lint", "ui", "params", "sweep", "clean", "help", "env"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


class Folder:
    """A checkout with a Makefile whose environment is made of stand-ins that log how they are called."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root / "checkout", root / "log"
        self.bin, self.system = self.root / ".venv" / "bin", root / "system"
        for folder in (self.bin, self.system):
            folder.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, self.root / name)
        for tool in TOOLS:
            path = shutil.which(tool)
            assert path is not None, tool
            (self.system / tool).symlink_to(path)
        for program in ("python", "dvc", "breakeven", "ruff", "mypy"):
            self.stand_in(program)
        (self.root / ".venv" / ".installed").touch()

    def stand_in(self, program: str, code: int = 0, folder: Path | None = None) -> None:
        path = (folder or self.bin) / program
        path.write_text(f'#!/bin/sh\necho "{program} $* | $PATH" >> "{self.log}"\nexit {code}\n')
        path.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        make = shutil.which("make")
        assert make is not None
        return subprocess.run(
            [make, *arguments], cwd=self.root, env={"PATH": str(self.system), "HOME": str(self.root)},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.is_file() else []


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_help_names_every_target(folder):
    shown = folder.make().stdout
    assert {line.split()[1] for line in shown.splitlines()} >= TARGETS


def test_second_run_installs_nothing_and_a_changed_lock_installs_again(folder):
    assert folder.make("-q", "env").returncode == 0
    later = (folder.root / ".venv" / ".installed").stat().st_mtime + 5
    os.utime(folder.root / "requirements.lock", (later, later))
    assert folder.make("-q", "env").returncode == 1


def test_repro_runs_dvc_then_prints_the_verdict(folder):
    assert folder.make("repro").returncode == 0
    assert [call.split(" |")[0].strip() for call in folder.calls()][-2:] == ["dvc repro", "breakeven verdict"]


def test_stages_find_the_python_of_the_environment(folder):
    folder.make("repro")
    (dvc,) = (call for call in folder.calls() if call.startswith("dvc repro"))
    assert dvc.split("| ")[1].startswith(f"{folder.bin}:")


def test_home_without_a_git_identity_still_makes_experiments(folder):
    (folder.bin / "breakeven").write_text(
        '#!/bin/sh\ntest -n "$GIT_AUTHOR_NAME" -a -n "$GIT_AUTHOR_EMAIL" '
        '-a -n "$GIT_COMMITTER_NAME" -a -n "$GIT_COMMITTER_EMAIL"\n'
    )
    assert folder.make("sweep").returncode == 0


def test_folder_without_git_runs_and_the_setting_goes_once_there_is_git(folder):
    folder.make("repro")
    assert any(call.startswith("dvc config --local core.no_scm true") for call in folder.calls())
    (folder.root / ".dvc").mkdir()
    (folder.root / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    subprocess.run(["git", "init", "-q", "."], cwd=folder.root, check=True)
    folder.make("repro")
    assert folder.calls()[-3].startswith("dvc config --local --unset core.no_scm")


@pytest.mark.parametrize("program", ["dvc", "breakeven"])
def test_repro_fails_when_a_part_of_it_fails(folder, program):
    folder.stand_in(program, code=1)
    assert folder.make("repro").returncode != 0


def test_failed_pipeline_prints_no_verdict(folder):
    folder.stand_in("dvc", code=255)
    folder.make("repro")
    assert not [call for call in folder.calls() if call.startswith("breakeven")]


@pytest.mark.parametrize("program, code", [("python", 5), ("python", 1), ("ruff", 1), ("mypy", 1)])
def test_test_fails_on_no_tests_failed_tests_lint_and_types(folder, program, code):
    folder.stand_in(program, code=code)
    assert folder.make("test").returncode != 0


def test_test_runs_lint_format_types_and_pytest(folder):
    assert folder.make("test").returncode == 0
    calls = [call.split(" |")[0] for call in folder.calls()]
    assert calls == ["ruff check .", "ruff format --check .", "mypy --strict src", "python -m pytest -n 2"]


def test_arguments_reach_sweep_and_params(folder):
    assert folder.make("sweep", "ARGS=-m drafter=ngram,early_exit").returncode == 0
    assert folder.make("params", "ARGS=hardware=cpu_fp32").returncode == 0
    calls = [call.split(" |")[0] for call in folder.calls()]
    assert calls[-2:] == ["breakeven sweep -m drafter=ngram,early_exit", "breakeven params hardware=cpu_fp32"]


def test_without_python_3_11_it_stops_and_says_so(folder):
    shutil.rmtree(folder.root / ".venv")
    folder.stand_in("python3", code=1, folder=folder.system)  # any other version answers the question with 1
    done = folder.make("env")
    assert done.returncode != 0
    assert "needs Python 3.11" in done.stderr
    assert not (folder.root / ".venv").exists()


def test_python_without_venv_is_refused_with_the_package_to_install(folder):
    shutil.rmtree(folder.root / ".venv")
    program = folder.system / "python3.11"
    program.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexit 0\n')
    program.chmod(0o755)
    done = folder.make("env")
    assert done.returncode != 0
    assert "lacks venv or ensurepip" in done.stderr


def test_failed_installation_is_tried_again(folder):
    (folder.root / ".venv" / ".installed").unlink()
    folder.stand_in("python3.11", folder=folder.system)
    folder.stand_in("python", code=1)
    assert folder.make("env").returncode != 0
    assert not (folder.root / ".venv" / ".installed").exists()


def test_clean_keeps_models_and_the_environment(folder):
    for name in ("data/models/m", "data/activations", "build", "outputs", "mlflow", "reports"):
        (folder.root / name).mkdir(parents=True)
    assert folder.make("clean").returncode == 0
    left = {str(p.relative_to(folder.root)) for p in folder.root.rglob("*") if p.is_dir()}
    assert {"data/models/m", ".venv/bin", "mlflow", "reports"} <= left
    assert not left & {"data/activations", "build", "outputs"}


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "\nset -eu\n" in script.read_text()
    assert "\nmake test" in script.read_text()
