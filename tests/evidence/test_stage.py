"""pipelines/summarize.py as DVC calls it: a child process in a workspace, exit codes and files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.synthetic import Truth, fabricate, write

from breakeven import io
from breakeven.params import composed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OUTPUTS = ("metrics/speculative.json", "metrics/acceptance.json", "metrics/audits.json", "claims.json", "claims.md")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    text, _ = composed(["experiment=quick"])
    (folder / "params.yaml").write_text(text, encoding="utf-8")
    truth = Truth(categories=("qa", "code"), ks=(1, 2), prompts_per_category=2, max_new_tokens=16)
    write(fabricate(truth), folder)
    return folder


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "pipelines" / "summarize.py"
    return subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)


def test_stage_writes_every_output_and_writes_the_same_again(workspace):
    first = _run(workspace)
    assert first.returncode == 0, first.stderr
    assert "35 claims" in first.stdout
    written = {name: (workspace / "reports" / name).read_bytes() for name in OUTPUTS}
    assert len(io.read_json(workspace / "reports" / "claims.json")) == 35
    assert _run(workspace).returncode == 0
    assert written == {name: (workspace / "reports" / name).read_bytes() for name in OUTPUTS}


def test_stage_refuses_missing_and_damaged_input(workspace):
    path = workspace / "data" / "rounds.parquet"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[: len(whole) // 2])
        damaged = _run(workspace)
        path.unlink()
        missing = _run(workspace)
    finally:
        path.write_bytes(whole)
    for result in (damaged, missing):
        assert result.returncode == 2
        assert "rounds.parquet" in result.stderr and "dvc repro" in result.stderr
        assert "Traceback" not in result.stderr
