"""From a workload's configuration to its prompts as a dataset, checked and split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import datasets

from breakeven.config import WorkloadConfig
from breakeven.errors import BreakevenError, ConfigError
from breakeven.io import read_json, sha256_file
from breakeven.models.lock import workload_path
from breakeven.workloads import builtin, human_eval, spec_bench
from breakeven.workloads.prompts import require_category

# One file a kind, each with load(content, source) -> rows of id, category, text: adding a workload is adding a file
# and a line here.
_LOADERS: dict[str, Callable[[bytes, str], list[dict[str, str]]]] = {
    "builtin": builtin.load,
    "spec_bench": spec_bench.load,
    "human_eval": human_eval.load,
}

_FEATURES = datasets.Features({name: datasets.Value("string") for name in ("id", "category", "text", "split")})


def load_prompts(workload: WorkloadConfig, lock_path: str | Path = "build/models.lock.json") -> datasets.Dataset:
    """Load the prompts of the wanted categories.

    Of each category the first `calibration_prompts_per_category` prompts have split "calibration" (they choose
    settings and are never measured), the others "measured".

    Args:
        workload: kind, categories and split; the file of spec_bench and human_eval is the one that the download stage
            recorded, byte for byte.
        lock_path: what the download stage recorded; not read for the built-in prompts.

    Returns:
        A dataset with the columns id, category, text and split, grouped by category in the order of
        `workload.categories`.

    Raises:
        ConfigError: unknown kind or category, a category without prompts or with too few of them.
        DownloadError: the file is missing.
        BreakevenError: the file has changed, is malformed, empty or has an id twice.
    """
    if workload.kind not in _LOADERS:
        raise ConfigError(f"workload.kind is {workload.kind!r}. Valid: {', '.join(_LOADERS)}.")
    wanted = [require_category("workload.categories", category) for category in workload.categories]
    if not wanted:
        raise ConfigError("workload.categories is empty. Name at least one.")
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"workload.categories names a category twice: {', '.join(wanted)}. Name each once.")
    rows = _LOADERS[workload.kind](*_content(workload, lock_path))
    if not rows:
        raise BreakevenError(f"workload {workload.name} holds no prompt. Check workload.path or workload.wheel.")
    twice = [name for name, count in Counter(row["id"] for row in rows).items() if count > 1]
    if twice:
        raise BreakevenError(f"workload {workload.name} has ids more than once: {', '.join(twice)}. Make them unique.")
    split_rows = [row for category in wanted for row in _split(rows, category, workload)]
    return datasets.Dataset.from_list(split_rows, features=_FEATURES)


def _content(workload: WorkloadConfig, lock_path: str | Path) -> tuple[bytes, str]:
    """Return the bytes of the workload's file and its name for messages."""
    if workload.kind == "builtin":
        return resources.files(__package__).joinpath(builtin.FILE).read_bytes(), f"{__package__}/{builtin.FILE}"
    path = workload_path(workload)
    recorded = (read_json(lock_path).get("workload") or {}).get("sha256")
    if sha256_file(path) != recorded:
        # Prompts that change between two stages would measure other text than calibration was told to avoid.
        raise BreakevenError(
            f"{path} is not the file that {lock_path} records. Run `dvc repro download` to take it in as it is now."
        )
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise BreakevenError(f"{path} cannot be read ({error.strerror}). Mend its permissions.") from error


def _split(rows: list[dict[str, str]], category: str, workload: WorkloadConfig) -> list[dict[str, str]]:
    """Return the rows of one category with their split."""
    found = [row for row in rows if row["category"] == category]
    n_calibration = workload.calibration_prompts_per_category
    if not found:
        present = ", ".join(dict.fromkeys(row["category"] for row in rows))
        raise ConfigError(
            f"workload {workload.name} has no prompt of category {category!r}. It has: {present}. "
            "Set workload.categories to some of these."
        )
    if len(found) <= n_calibration:
        raise ConfigError(
            f"workload {workload.name} has {len(found)} prompts of category {category!r}, and "
            f"workload.calibration_prompts_per_category is {n_calibration}: none would be left to measure. "
            f"Set it to at most {len(found) - 1}."
        )
    return [{**row, "split": "calibration" if index < n_calibration else "measured"} for index, row in enumerate(found)]
