"""Stage kv_error: every scheme x bits x axes on the captured activations, and statistics of their channels."""

import pandas as pd
from tqdm import tqdm

from breakeven import config, io
from breakeven.kv import activations
from breakeven.kv.channels import channel_statistics
from breakeven.kv.error import Layer, measure_layer
from breakeven.kv.rows import error_rows
from breakeven.kv.schemes import registry
from breakeven.stage import run

FOLDER = "data/activations"


def main() -> None:
    """Load layer by layer, measure, save."""
    cfg = config.load()
    meta = activations.load_meta(FOLDER)
    schemes = [registry.build(name, settings) for name, settings in sorted(cfg.kv.items())]
    errors, channels = [], []
    for index in tqdm(range(meta["n_layers"]), desc="kv_error", unit="layer"):
        tensors = activations.load_layer(FOLDER, index)
        layer = Layer(
            index, tensors["q_post"], tensors["k_post"], tensors["v"], meta["scaling"][index], meta["windows"][index]
        )
        errors.append(measure_layer(layer, meta["text_ids"], schemes, cfg.kv_error))
        channels.append(channel_statistics(index, tensors))
    table = pd.concat(errors, ignore_index=True)
    io.write_parquet("data/kv_error.parquet", table)
    io.write_parquet("data/kv_channels.parquet", pd.concat(channels, ignore_index=True))
    by_head = error_rows(table, cfg.measure, meta["model"], groupings=(("layer", "kv_head"),))
    io.write_parquet("data/kv_error_heads.parquet", pd.DataFrame(by_head))
    io.write_json("reports/metrics/kv_error.json", error_rows(table, cfg.measure, meta["model"]))


if __name__ == "__main__":
    run(main)
