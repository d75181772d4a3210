"""How it was measured, what it does not say, and how to measure it again: prose made from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breakeven.reporting.data import Results, chosen, claim_order, overall
from breakeven.reporting.words import NOT_MEASURED, counted, listed, memory, number, percent, temperature, whole


def machine_facts(results: Results) -> list[tuple[str, str]]:
    """Return (what, value) of the machine, the model and the protocol."""
    return [*_machine(results), *_model(results), *_protocol(results)]


def _machine(results: Results) -> list[tuple[str, str]]:
    hardware, config = results.hardware, results.config.hardware
    cores, threads = hardware.get("physical_cores"), hardware.get("threads")
    ram = hardware.get("ram_gib")
    return [
        ("Machine", f"{hardware.get('machine') or 'unknown'} (fingerprint; timings hold for this machine only)"),
        ("Processor", str(hardware.get("cpu_model") or "unknown")),
        ("Devices", ", ".join(map(str, hardware.get("device_names") or [])) or str(config.device)),
        ("Cores and threads", f"{_or_unknown(cores)} physical cores, {_or_unknown(threads)} threads"),
        ("Memory", f"{number(float(ram), 1)} GiB" if ram else NOT_MEASURED),
        ("Hardware target", f"{config.name}: {config.device}, {config.dtype}"),
        ("Software", f"Python {_or_unknown(hardware.get('python'))}, torch {_or_unknown(hardware.get('torch'))}"),
    ]


def _or_unknown(value: Any) -> str:
    return "an unknown number of" if value is None else str(value)


def _model(results: Results) -> list[tuple[str, str]]:
    facts = []
    for role, label in (("target", "Target model"), ("draft", "Draft model")):
        model = results.lock.get("models", {}).get(role)
        if model:
            facts.append((label, _model_text(model)))
    return facts or [("Target model", results.config.model.name)]


def _model_text(model: dict[str, Any]) -> str:
    """Describe a locked model; facts that the lock does not carry are left out."""
    parts = [str(model.get("name"))]
    if model.get("n_parameters"):
        parts.append(f"{whole(model['n_parameters'] / 1e6)} million parameters")
    if model.get("n_layers"):
        heads = f"{model.get('n_query_heads')} query and {model.get('n_kv_heads')} KV heads"
        parts.append(f"{model['n_layers']} layers, {heads} of width {model.get('head_dim')}")
    if model.get("dequantized_from"):
        parts.append(f"weights dequantized from {model['dequantized_from']}")
    if model.get("license"):
        parts.append(f"licence {model['license']}")
    files = model.get("files", {})
    for name in sorted(files):
        if str(name).endswith(".safetensors") and files[name].get("sha256"):
            parts.append(f"{name} sha256 {str(files[name]['sha256'])[:12]}… ({memory(files[name].get('bytes'))})")
    return ", ".join(parts)


def _protocol(results: Results) -> list[tuple[str, str]]:
    config, speculate, measure = results.config, results.config.speculate, results.config.measure
    most = max((row["n_prompts"] for row in overall(results.speculative)), default=0)
    texts = max((row["n_texts"] for row in results.kv_error), default=0)
    contexts = sorted({row["context_tokens"] for row in results.kv_error})
    workload = f"{config.workload.name}: {listed([c.replace('_', ' ') for c in sorted(config.workload.categories)])}"
    return [
        ("Experiment", config.experiment),
        ("Prompts", f"{workload}; up to {counted(most, 'prompt')} behind one number"),
        (
            "Decoding",
            f"up to {counted(speculate.max_new_tokens, 'new token')} a prompt, "
            f"{listed([temperature(t) for t in sorted(speculate.temperatures)])}, draft lengths "
            f"{listed([str(k) for k in sorted(speculate.k)])}, {counted(speculate.repeats, 'timed repeat')}; plain and "
            "speculative decoding interleaved, batch 1",
        ),
        (
            "Costs",
            f"{counted(config.costs.repeats, 'timed repeat')} after {counted(config.costs.warmup, 'warm-up')}, "
            f"interleaved, behind {listed([str(n) for n in sorted(config.costs.context_tokens)])} tokens of context",
        ),
        (
            "Quantization",
            f"{counted(texts, 'text')} of {listed([str(n) for n in contexts]) or 'no'} tokens, every layer and KV "
            "head, teacher-forced: each layer sees unquantized input",
        ),
        (
            "Intervals",
            f"{percent(measure.confidence)} bootstrap intervals, {counted(measure.bootstrap_resamples, 'resample')} "
            f"of whole prompts or texts; seed {measure.seed}, trial {measure.trial}",
        ),
    ]


def limits(results: Results) -> list[str]:
    """Return what the report does not say; each sentence only where it is true of this run."""
    lines = [
        f"Speedups are those of {results.config.hardware.name} on this machine and of {results.config.model.name}. "
        "Acceptance carries over to other machines; c, v(m) and overhead, and so the speedup, do not.",
        "Everything ran at batch size 1. Larger batches make verification dearer, and the gain shrinks.",
        "Quantization errors are local: each layer is given exact input. They do not tell how errors add up over "
        "layers and generated tokens, and no scheme was timed.",
        "Speedups leave the prefill out unless a column says otherwise.",
    ]
    if results.config.model.source.kind == "random":
        lines.insert(0, "The model is random: the pipeline was tested, nothing was learnt about language models.")
    few = min((row["n_prompts"] for row in chosen(results.speculative)), default=None)
    if few is not None and few < _FEW_CLUSTERS:
        lines.append(
            f"Some intervals rest on {counted(few, 'prompt')} only. Bootstrap intervals over so few are too narrow, "
            "and over one there is none."
        )
    if any(row["n_divergences"] for row in results.speculative):
        lines.append(
            "Outputs that differ from plain decoding at temperature 0 are listed as near ties where the two best "
            "tokens are closer than the rounding of this number format."
        )
    open_claims = sorted(
        (row["id"] for row in results.claims if row["verdict"] in {"not_testable_here", "pending"}), key=claim_order
    )
    if open_claims:
        lines.append(f"Not measured on this machine: {counted(len(open_claims), 'claim')} ({', '.join(open_claims)}).")
    return lines


# Below this many clusters the percentile bootstrap covers visibly less than it promises.
_FEW_CLUSTERS = 8


def commands(results: Results) -> list[tuple[str, str, str]]:
    """Return (which numbers, what happens, command) for everything that the report shows."""
    trial = results.config.measure.trial + 1
    lengths = ",".join(str(k) for k in sorted(results.config.speculate.k))
    target, model = results.config.hardware.name, results.config.model.name
    again = "dvc repro --force --single-item"
    return [
        ("Everything", "Runs what has changed; nothing if nothing has", "dvc repro"),
        ("Everything, measured anew", "A new trial beside the old one", f"dvc exp run -S measure.trial={trial}"),
        ("Quantization errors", "Captures and quantizes again", f"{again} capture kv_error"),
        ("Acceptance on calibration prompts", "Replays every drafter", f"{again} calibrate"),
        ("c, v(m), overhead, memory", "Times this machine again", f"{again} costs"),
        ("Speedup, τ, acceptance", "Decodes every prompt again", f"{again} speculate"),
        ("Predictions, intervals, claims", "No measurement, only arithmetic", f"{again} summarize"),
        ("Figures and this page", "No measurement", f"{again} report"),
        (
            "Other draft lengths",
            "One run a length, skipping what is unchanged",
            f"breakeven sweep -m hardware={target} model={model} speculate.k={lengths}",
        ),
    ]


def ledger_counts(verdicts: Sequence[str]) -> list[tuple[str, int]]:
    """Count the claims by verdict, in the order in which a reader asks."""
    order = ("reproduced", "partly", "contradicted", "not_testable_here", "pending")
    return [(verdict, list(verdicts).count(verdict)) for verdict in order if verdict in verdicts]
