"""Stage summarize: estimators, predictors, intervals, audits and the claims ledger. Pure: measures nothing."""

from collections import Counter

from breakeven import config, io
from breakeven.evidence.claims import ledger, markdown
from breakeven.evidence.summary import facts, load, summarize
from breakeven.stage import run


def main() -> None:
    """Load, summarise, save."""
    cfg = config.load()
    measured = load()
    summary = summarize(measured, cfg)
    seen = facts(measured, summary)
    claims = ledger(seen)
    io.write_json("reports/metrics/speculative.json", summary.speculative)
    io.write_json("reports/metrics/acceptance.json", summary.acceptance)
    io.write_json("reports/metrics/audits.json", summary.audits)
    io.write_json("reports/claims.json", claims)
    io.write_text("reports/claims.md", markdown(claims, seen))
    for row in summary.audits:
        if not row["passed"]:
            print(f"audit failed: {row['audit']}: {row['detail']}")
    counts = Counter(row["verdict"] for row in claims)
    print(f"{len(claims)} claims: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))


if __name__ == "__main__":
    run(main)
