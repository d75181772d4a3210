"""The command line: exit codes that scripts can rely on, refusals without a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from breakeven import cli
from breakeven.stage import EXIT_INTERRUPTED, EXIT_REFUSED
from helpers import workspace

COMMANDS = ("params", "sweep", "ui", "verdict", "reap", "doctor")


def _call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["breakeven", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workspace.conf_only(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(monkeypatch, "--help") == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {command} " in printed for command in COMMANDS)
    for command in COMMANDS:
        assert _call(monkeypatch, command, "--help") == 0


def test_help_imports_nothing_heavy() -> None:
    script = "import breakeven.cli, sys; print([m for m in ('torch', 'mlflow', 'dvc', 'pandas') if m in sys.modules])"
    done = workspace.run(workspace.REPOSITORY, sys.executable, "-c", script)
    assert done.stdout == "[]\n", done.stderr


def test_params_composes_checks_and_refuses(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(monkeypatch, "params", "experiment=quick") == 0
    assert "model=tiny" in capsys.readouterr().out
    assert _call(monkeypatch, "params", "--check", "experiment=quick") == 0
    assert _call(monkeypatch, "params", "--check") == EXIT_REFUSED
    assert "differs from conf/ at" in capsys.readouterr().err
    before = (root / "params.yaml").read_bytes()
    assert _call(monkeypatch, "params", "experiment=nope") == EXIT_REFUSED
    error = capsys.readouterr().err
    assert error.startswith("error: experiment has no option 'nope'")
    assert "Traceback" not in error
    assert (root / "params.yaml").read_bytes() == before


def test_every_command_outside_a_repository_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["params"], ["sweep", "-m", "measure.seed=1,2"], ["ui"], ["verdict"], ["reap"], ["doctor"]):
        assert _call(monkeypatch, *command) == EXIT_REFUSED, command
        assert "not inside a Breakeven repository" in capsys.readouterr().err


def test_verdict_without_results_names_the_command_that_makes_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(monkeypatch, "verdict") == EXIT_REFUSED
    assert "dvc repro" in capsys.readouterr().err


def test_verdict_prints_what_the_result_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.write_results(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert _call(monkeypatch, "verdict") == 0
    assert "ngram" in capsys.readouterr().out


def test_an_interrupt_exits_with_the_shells_code(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("breakeven.params.compose", interrupt)
    assert _call(monkeypatch, "params") == EXIT_INTERRUPTED


def test_a_bug_keeps_its_traceback(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("breakeven.params.compose", bug)
    monkeypatch.setattr(sys, "argv", ["breakeven", "params"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_doctor_names_the_mend_of_everything_that_is_wrong(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(monkeypatch, "doctor") == 0
    printed = capsys.readouterr().out
    for expected in ("make params", "not a git repository", "cpu_bf16", "cuda_h200", "GiB free", "mlflow"):
        assert expected in printed
    assert _call(monkeypatch, "params", "experiment=quick") == 0
    assert _call(monkeypatch, "doctor") == 0
    printed = capsys.readouterr().out
    assert "tiny on cpu_bf16, ready for `dvc repro`" in printed
    assert "no database yet" in printed
