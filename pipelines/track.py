"""Project the result files into MLflow. Runs every time, so that a cached result leaves no hole."""

from __future__ import annotations

from breakeven import io
from breakeven.paths import workspace
from breakeven.stage import run
from breakeven.tracking.project import project


def main() -> None:
    """Log what MLflow does not hold yet."""
    summary, outcome = project(workspace())
    io.write_json("build/track.json", summary)
    print(f"MLflow: {outcome.logged} runs logged, {outcome.known} were there already")


if __name__ == "__main__":
    run(main)
