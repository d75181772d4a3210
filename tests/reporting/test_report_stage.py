"""The report stage on a workspace as the other stages leave it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests import synthetic

from breakeven import io
from breakeven.errors import BreakevenError
from breakeven.reporting.verdict import main_lines
from helpers import reported

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file that the stage depends on."""
    truth = synthetic.Truth(ks=(1, 4), temperatures=(0.0,))
    synthetic.write(synthetic.fabricate(truth), tmp_path)
    metrics = tmp_path / "reports" / "metrics"
    io.write_json(metrics / "speculative.json", reported.speculative_rows(truth))
    io.write_json(metrics / "acceptance.json", reported.acceptance_rows(truth))
    io.write_json(metrics / "audits.json", [{"audit": "a", "passed": True, "detail": "b"}])
    io.write_json(tmp_path / "reports" / "claims.json", reported.claims())
    OmegaConf.save(OmegaConf.structured(reported.config()), tmp_path / "params.yaml")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stage_main() -> None:
    spec = importlib.util.spec_from_file_location("report_stage", ROOT / "pipelines" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


def test_the_stage_writes_page_and_figures_and_prints_the_verdict(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage_main()
    page = (workspace / "reports" / "report.html").read_text(encoding="utf-8")
    assert "Speculative decoding pays here with ngram" in page
    assert len(list((workspace / "reports" / "figures").glob("*.svg"))) == 12
    printed = capsys.readouterr().out
    assert printed.splitlines()[: len(main_lines(workspace))] == main_lines(workspace)
    assert "reports/report.html" in printed


@pytest.mark.parametrize(
    "gone", ["reports/metrics/speculative.json", "reports/claims.json", "data/kv_channels.parquet"]
)
def test_a_missing_input_is_refused_before_anything_is_written(workspace: Path, gone: str) -> None:
    (workspace / gone).unlink()
    with pytest.raises(BreakevenError, match=r"is missing\. Run `dvc repro`"):
        stage_main()
    assert not (workspace / "reports" / "report.html").exists()


def test_the_verdict_needs_only_the_metrics(workspace: Path) -> None:
    for path in (workspace / "data").iterdir():
        path.unlink()
    (workspace / "params.yaml").unlink()
    assert main_lines(workspace)[0].startswith("Speculative decoding pays here with ngram")
