"""Refuse a params.yaml that does not match conf/, that no stage could serve, or that asks for absent hardware."""

from __future__ import annotations

from breakeven import guard, io
from breakeven.stage import run


def main() -> None:
    """Check everything that can be checked before any work."""
    passed = guard.check("params.yaml")
    io.write_json("build/guard.json", passed)
    print(f"params.yaml fits conf/ ({passed['conf_digest'][:12]}): experiment {passed['experiment']}")


if __name__ == "__main__":
    run(main)
