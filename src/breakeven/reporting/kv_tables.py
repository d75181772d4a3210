"""Tables of the quantization errors."""

from __future__ import annotations

from breakeven.reporting.data import Results, kv_by_key_axis, kv_overall
from breakeven.reporting.tables import Table, make
from breakeven.reporting.words import NOT_MEASURED, number, ratio, whole, with_interval
from breakeven.results import KvErrorRow


def attention_errors(results: Results) -> Table:
    """The post's table, made right: a row a scheme and bit width, keys per token beside keys per channel."""
    pairs: dict[tuple[str, int], dict[str, KvErrorRow]] = {}
    for row in kv_by_key_axis(results.kv_error):
        pairs.setdefault((row["scheme"], row["bits_nominal"]), {})[row["k_axis"]] = row
    rows = []
    for (scheme, bits), by_axis in sorted(pairs.items()):
        token, channel = by_axis.get("token"), by_axis.get("channel")
        some = token or channel
        assert some is not None
        errors = [_maybe(row, "attention_error") for row in (token, channel)]
        centred = [_maybe(row, "score_error_centred") for row in (token, channel)]
        sizes = [NOT_MEASURED if row is None else number(row["k_bits_real"]) for row in (token, channel)]
        name = f"{scheme}, {bits}\N{NO-BREAK SPACE}bits"
        rows.append((name, *errors, _gain(token, channel), whole(some["levels"]), *sizes, *centred))
    columns = ["scheme", "error per token", "error per channel", "token / channel", "levels"]
    columns += ["real bits per token", "real bits per channel", "centred score error per token", "… per channel"]
    return make(
        "attention-errors",
        "Error from quantized keys, one scale per token or per channel; all layers and KV heads, intervals over texts. "
        "Error: of the attention weights; token / channel: how many times smaller it is per channel",
        columns,
        rows,
        (),
        "reports/metrics/kv_error.json",
    )


def _maybe(row: KvErrorRow | None, key: str) -> str:
    return NOT_MEASURED if row is None else _span(row, key)


def _gain(token: KvErrorRow | None, channel: KvErrorRow | None) -> str:
    if token is None or channel is None or not channel["attention_error"]:
        return NOT_MEASURED
    return ratio(token["attention_error"] / channel["attention_error"])


def output_errors(results: Results) -> Table:
    """Output error with keys, values or both quantized: each scheme and bit width at its best pair of axes."""
    best: dict[tuple[str, int], KvErrorRow] = {}
    for row in kv_overall(results.kv_error):
        key = (row["scheme"], row["bits_nominal"])
        if key not in best or row["output_error_both"] < best[key]["output_error_both"]:
            best[key] = row
    rows = [
        (
            f"{row['scheme']}, {row['bits_nominal']}\N{NO-BREAK SPACE}bits",
            _span(row, "output_error_both"),
            number(row["bits_real"]),
            _span(row, "output_error_k_only"),
            _span(row, "output_error_v_only"),
            f"K {row['k_axis']}, V {row['v_axis']}",
        )
        for row in best.values()
    ]
    columns = ("scheme", "both", "real bits", "K only", "V only", "best axes")
    return make(
        "output-errors",
        "Relative error of the attention output, each scheme at the pair of axes with the smallest error",
        columns,
        rows,
        (5,),
        "reports/metrics/kv_error.json",
    )


def _span(row: KvErrorRow, key: str) -> str:
    """Read a quantity and its bounds by name."""
    cells = dict(row)
    value, low, high = (cells[name] for name in (key, f"{key}_low", f"{key}_high"))
    return with_interval(_number(value), _number(low), _number(high), 3)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
