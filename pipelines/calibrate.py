"""Stage calibrate: acceptance of every drafter setting on the calibration prompts (no timing)."""

from breakeven import config, io, workloads
from breakeven.calibration.calibrate import acceptance, write_outputs
from breakeven.drafters import registry
from breakeven.models import loading
from breakeven.stage import run

LOCK = "build/models.lock.json"


def main() -> None:
    """Load, measure, save."""
    cfg = config.load()
    place = {"dtype": cfg.hardware.dtype, "device": cfg.hardware.device, "threads": cfg.hardware.threads}
    target, tokenizer = loading.load_target(LOCK, **place)
    draft_model = loading.load_role(LOCK, "draft", **place)[0] if "small_lm" in cfg.drafter else None
    prompts = workloads.to_prompts(
        workloads.load_prompts(cfg.workload), "calibration", cfg.workload.calibration_prompts_per_category
    )
    encoded = [(prompt.id, workloads.encode_prompt(prompt, tokenizer)) for prompt in prompts]
    limit = cfg.calibrate.max_new_tokens
    workloads.check_context({i: len(ids) + limit for i, ids in encoded}, cfg.hardware.max_context_tokens)
    texts = write_outputs(target, encoded, limit, target.eos_ids, cfg.measure.seed)
    records = {
        name: acceptance(
            name,
            registry.candidates(name, settings, target.n_layers),
            target,
            draft_model,
            texts,
            sorted(cfg.calibrate.k_candidates),
            limit,
        )
        for name, settings in sorted(cfg.drafter.items())
    }
    io.write_json("data/calibration.json", {"model": cfg.model.name, "drafters": records})


if __name__ == "__main__":
    run(main)
