"""Figure of the memory of weights, KV cache, drafters and the whole process."""

from __future__ import annotations

from breakeven.reporting.data import Results, cost_rows
from breakeven.reporting.figures.style import Plot, canvas, to_svg
from breakeven.reporting.words import listed, memory

_MIB = 1024.0**2
_COLORS = {"weights": "#0072B2", "kv": "#009E73", "drafter": "#D55E00", "peak": "#555555"}


def memory_bars(results: Results) -> Plot | None:
    """Draw one bar for every known part."""
    parts = memory_parts(results)
    if not parts:
        return None
    sizes = [n_bytes / _MIB for _, n_bytes, _ in reversed(parts)]
    present = [size for size in sizes if size > 0] or [1.0]
    low, high = min(present) / 3, max(present)
    with canvas(1, 0.9 + 0.36 * len(parts)) as (figure, panels):
        axes = panels[0]
        # A part of 0 bytes has no place on a logarithmic axis: it gets its label at the edge and no bar.
        edges = [max(size, low) for size in sizes]
        axes.barh(range(len(parts)), edges, color=[_COLORS[kind] for _, _, kind in reversed(parts)], height=0.7)
        for i, (_, n_bytes, _) in enumerate(reversed(parts)):
            axes.annotate(
                memory(n_bytes), (edges[i], i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10.5
            )
        axes.set_yticks(range(len(parts)), [label for label, _, _ in reversed(parts)])
        axes.set_xscale("log")
        # Room for the label of the longest bar.
        axes.set_xlim(low, high * (high / low) ** 0.45)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("MiB (logarithmic)")
        svg = to_svg(figure)
    return Plot(
        "memory",
        "Memory",
        "Weights and KV cache of the target, what each drafter adds, and the measured peak of the process. The cache "
        "grows with every token and every request; weights do not.",
        f"Bars. {listed([f'{label}: {memory(n_bytes)}' for label, n_bytes, _ in parts])}.",
        svg,
    )


def memory_parts(results: Results) -> list[tuple[str, float, str]]:
    """Return (label, bytes, kind) of every part of memory that is known, largest contexts last."""
    rows = cost_rows(results.costs, "memory_bytes")
    parts = [("target weights", row["value"], "weights") for row in rows if row["part"] == "weights"]
    per_token = next((row["value"] for row in rows if row["part"] == "kv_per_token"), None)
    if per_token:
        limit = results.config.hardware.max_context_tokens
        contexts = sorted({n for n in (1024, 4096, 16384, 65536) if n < limit} | {limit})
        parts += [(f"KV, {context:,} tokens", per_token * context, "kv") for context in contexts]
    for name in sorted({row["drafter"] for row in rows if row["part"] == "drafter" and row["drafter"]}):
        size = max(row["value"] for row in rows if row["part"] == "drafter" and row["drafter"] == name)
        parts.append((f"drafter {name}", size, "drafter"))
    peaks = [row["value"] for row in rows if row["part"] == "process_peak"]
    return parts + ([("process, peak", max(peaks), "peak")] if peaks else [])
