"""Stage costs: c, v(m), overhead and memory on this machine, and the plan that follows from them."""

from breakeven import config, io, workloads
from breakeven.costs.rows import cost_rows, memory_rows, process_peak_bytes
from breakeven.costs.stage import measure_costs
from breakeven.locking import machine_lock
from breakeven.models import loading
from breakeven.stage import run

LOCK = "build/models.lock.json"


def main() -> None:
    """Load, measure, save."""
    cfg = config.load()
    machine = io.read_json("build/hardware.json")["machine"]
    place = {"dtype": cfg.hardware.dtype, "device": cfg.hardware.device, "threads": cfg.hardware.threads}
    target, tokenizer = loading.load_target(LOCK, **place)
    draft_model = loading.load_role(LOCK, "draft", **place)[0] if "small_lm" in cfg.drafter else None
    longest = max(cfg.costs.context_tokens) + 2 * cfg.costs.max_m + 2
    text = workloads.calibration_texts(1, longest, tokenizer, cfg.measure.seed)[0][1]
    with machine_lock():
        samples, plan, drafters = measure_costs(cfg, io.read_json("data/calibration.json"), target, draft_model, text)
    names = {"model": cfg.model.name, "machine": machine}
    parts = {
        "weights": target.nbytes,
        "kv_per_token": target.kv_bytes_per_token,
        "process_peak": process_peak_bytes(target.device),
    }
    rows = cost_rows(samples, cfg.measure, **names)
    rows += memory_rows(parts, {name: drafter.nbytes for name, drafter in drafters.items()}, **names)
    io.write_parquet("data/costs.parquet", samples)
    io.write_json("data/plan.json", plan)
    io.write_json("reports/metrics/costs.json", rows)


if __name__ == "__main__":
    run(main)
