"""Stage speculate: plain and speculative decoding, interleaved, on the measured prompts."""

from breakeven import config, io, workloads
from breakeven.drafters import registry
from breakeven.locking import machine_lock
from breakeven.models import loading
from breakeven.speculative.benchmark import Benchmark, Task
from breakeven.speculative.divergence import divergences
from breakeven.stage import run

LOCK = "build/models.lock.json"


def main() -> None:
    """Load, measure, save."""
    cfg = config.load()
    machine = io.read_json("build/hardware.json")["machine"]
    plan = io.read_json("data/plan.json")
    place = {"dtype": cfg.hardware.dtype, "device": cfg.hardware.device, "threads": cfg.hardware.threads}
    target, tokenizer = loading.load_target(LOCK, **place)
    draft_model = loading.load_role(LOCK, "draft", **place)[0] if "small_lm" in cfg.drafter else None
    drafters = {n: registry.build(n, target, p["setting"], draft_model) for n, p in plan["drafters"].items()}
    prompts = workloads.to_prompts(workloads.load_prompts(cfg.workload), "measured", cfg.speculate.prompts_per_category)
    tasks = [Task(p.id, p.category, workloads.encode_prompt(p, tokenizer)) for p in prompts]
    needed = {t.prompt_id: len(t.tokens) + cfg.speculate.max_new_tokens for t in tasks}
    workloads.check_context(needed, cfg.hardware.max_context_tokens)
    with machine_lock():
        requests, rounds = Benchmark(cfg, machine, target, drafters).run(tasks, plan)
    io.write_parquet("data/divergences.parquet", divergences(requests))
    io.write_parquet("data/requests.parquet", requests)
    io.write_parquet("data/rounds.parquet", rounds)


if __name__ == "__main__":
    run(main)
