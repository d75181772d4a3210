"""Stage report: figures and one self-contained page from the result files of this run. Measures nothing."""

from __future__ import annotations

from breakeven.stage import run


def main() -> None:
    """Read the result files, draw, write reports/figures and reports/report.html."""
    from breakeven.paths import workspace
    from breakeven.reporting.data import read
    from breakeven.reporting.page import write
    from breakeven.reporting.verdict import verdict_lines

    root = workspace()
    results = read(root)
    write(results, root / "reports")
    for line in verdict_lines(results.speculative, results.kv_error, results.audits):
        print(line)
    print("report: reports/report.html")


if __name__ == "__main__":
    run(main)
