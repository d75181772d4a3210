"""The schema of every result file: one flat row type a file, units in the names, versioned.

`*_low` and `*_high` bound the interval of `measure.confidence` (bootstrap clustered by text or prompt unless a field
says otherwise). Null means "does not apply" or "not measured", never zero.
"""

from __future__ import annotations

from typing import TypedDict

SCHEMA_VERSION = 1


class KvErrorRow(TypedDict):
    """reports/metrics/kv_error.json: local (teacher-forced) error of one scheme; layer and kv_head null: all.

    Rows by layer and KV head are in data/kv_error_heads.parquet, with the same columns.
    """

    schema_version: int
    model: str
    scheme: str  # name in conf/kv/
    k_axis: str  # token | channel: along which a key scale is shared
    v_axis: str
    bits_nominal: int  # as the scheme calls itself
    levels: int  # distinct values a code can really take
    group_size: int  # 0: the whole vector
    context_tokens: int
    layer: int | None
    kv_head: int | None
    k_bits_real: float  # bits per element, scales and minima counted
    v_bits_real: float
    bits_real: float  # mean of the two
    attention_error: float  # the post's ||A - A^||_F / ||A||_F; depends on K only
    attention_error_low: float
    attention_error_high: float
    score_error_centred: float  # ||P(S - S^)|| / ||P S||, P removes each row's mean over allowed keys
    score_error_centred_low: float
    score_error_centred_high: float
    output_error_k_only: float  # ||O - O^||_F / ||O||_F with only K quantized
    output_error_k_only_low: float
    output_error_k_only_high: float
    output_error_v_only: float
    output_error_v_only_low: float
    output_error_v_only_high: float
    output_error_both: float
    output_error_both_low: float
    output_error_both_high: float
    n_texts: int


class CostRow(TypedDict):
    """reports/metrics/costs.json: one cost of this machine."""

    schema_version: int
    model: str
    machine: str
    quantity: str  # target_step_s | v | c | overhead_s | overhead_ratio | memory_bytes
    drafter: str | None
    setting: str | None  # canonical JSON of the drafter's calibrated setting
    layer: int | None  # exit layer
    m: int | None  # tokens in one forward pass (v, c of a draft of m tokens is m * c)
    context_tokens: int | None
    part: str | None  # memory: weights | kv_per_token | drafter | process_peak; overhead: phase
    value: float
    value_low: float | None
    value_high: float | None
    n: int


class SpeculativeRow(TypedDict):
    """reports/metrics/speculative.json: one drafter x setting x k x temperature x category (all: every category)."""

    schema_version: int
    model: str
    machine: str
    hardware: str
    dtype: str
    workload: str
    category: str
    drafter: str
    setting: str
    k: int
    calibrated: bool  # the k that calibration chose, run on all prompts
    temperature: float
    lossless: bool
    n_prompts: int
    n_rounds: int
    n_tokens: int
    tau: float  # tokens emitted per target pass, bonus and recovered included
    tau_low: float | None
    tau_high: float | None
    alpha: float | None  # truncated-geometric MLE: accepted / (accepted + rounds that ended in a rejection)
    alpha_low: float | None
    alpha_high: float | None
    alpha_accepted_per_drafted: float | None  # A / D
    alpha_sum_min: float | None  # mean of sum_y min(p, q) over tested positions
    accepted_per_round: float  # A / R, without the bonus
    draft_rate: float  # share of rounds in which the drafter proposed at least one token
    c: float | None  # draft cost of one token in target steps
    c_low: float | None
    c_high: float | None
    v_verify: float | None  # mean of v(m) over the lengths that were verified
    overhead: float | None  # per round, in target steps
    speedup: float  # median over prompts of paired ratios of decode seconds per token
    speedup_low: float | None
    speedup_high: float | None
    speedup_total: float  # ratio of total tokens / total decode seconds
    speedup_end_to_end: float  # prefill of target and draft included
    tokens_per_s: float
    tokens_per_s_plain: float
    predicted_post: float | None  # the three predictions answer for speedup_total
    predicted_leviathan: float | None
    predicted_cost_aware: float | None
    residual_cost_aware: float | None  # predicted_cost_aware / speedup_total - 1
    kv_bytes_per_token: int
    drafter_bytes: int
    peak_memory_bytes: int
    n_divergences: int | None  # greedy outputs that differ from plain decoding
    n_divergences_near_tie: int | None  # of these, explained by the top-2 margin


class AcceptanceRow(TypedDict):
    """reports/metrics/acceptance.json: acceptance under every definition in use, by its own name."""

    schema_version: int
    model: str
    drafter: str
    setting: str
    k: int
    temperature: float
    category: str
    definition: str  # tau | accepted_per_round | accepted_per_drafted | alpha_mle | unconditional | conditional |
    #                  sum_min | match_probability | top1_agreement
    position: int | None  # 1-based draft position, for unconditional and conditional
    value: float
    value_low: float | None
    value_high: float | None
    n: int


class AuditRow(TypedDict):
    """reports/metrics/audits.json: one check of the benchmark itself."""

    audit: str
    passed: bool
    detail: str


class ClaimRow(TypedDict):
    """reports/claims.json: one published claim and what was found."""

    id: str  # SD1..SD10, KV1..KV10, TK1..TK4, GD1..GD11
    claim: str
    published: str
    measured: str  # "not measured on this machine" when it was not
    verdict: str  # reproduced | contradicted | partly | not_testable_here | pending
    reason: str
    artefact: str | None  # path of the file that shows it
