"""The `breakeven` command. Each command imports what it needs, so that `--help` is instant."""

from __future__ import annotations

from typing import Annotated

import typer

from breakeven.stage import run

app = typer.Typer(
    name="breakeven",
    help=(
        "Measure, for your model on your hardware, which KV-cache quantization and which speculative drafter pay.\n\n"
        "The pipeline itself is `dvc repro`; the commands here prepare it, sweep over it and show what it found."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="e.g. experiment=quick")]
_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["--help"]}


@app.command()
def params(
    overrides: Overrides = None,
    check: Annotated[bool, typer.Option("--check", help="Only compare; write nothing.")] = False,
) -> None:
    """Compose conf/ into params.yaml, checked first."""
    from breakeven import params as composition
    from breakeven.errors import ConfigError

    if check:
        different = composition.differences(overrides or [])
        if different:
            raise ConfigError(f"params.yaml differs from conf/ at {', '.join(different)}. Run `make params`.")
        print("params.yaml is what conf/ composes to")
        return
    composed = composition.compose(overrides or [])
    print(
        f"params.yaml: experiment={composed.experiment} hardware={composed.hardware.name} "
        f"model={composed.model.name} kv={sorted(composed.kv)} drafter={sorted(composed.drafter)}"
    )


@app.command(context_settings=_RAW)
def sweep(context: typer.Context) -> None:
    """Run every combination of choices, resumably.

    For example: breakeven sweep -m hardware=cpu_bf16,cpu_fp32 drafter=ngram,early_exit

    Each job is a DVC experiment in a process of its own. The same command again runs only what is unfinished.
    Options other than key=value go to Hydra (e.g. hydra/launcher=ray).
    """
    from breakeven.sweep import sweep as run_sweep

    raise typer.Exit(run_sweep(context.args))


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Compare the runs in MLflow's web interface.

    Stop it before you measure: it takes half a gigabyte and some of the machine's time.
    """
    from breakeven.tracking.ui import serve

    serve(host, port)


@app.command()
def verdict() -> None:
    """Print what pays on this machine.

    It repeats what the last finished run found, from the files under reports/.
    """
    from breakeven.paths import workspace
    from breakeven.reporting.verdict import main_lines

    for line in main_lines(workspace()):
        print(line)


@app.command()
def reap() -> None:
    """Close MLflow runs whose process was killed."""
    from breakeven.tracking.reap import reap as close_dead_runs

    for line in close_dead_runs():
        print(line)


@app.command()
def doctor() -> None:
    """Show what the pipeline finds on this machine.

    Python, packages, hardware targets, models, free disk space and the state of MLflow.
    """
    from breakeven.doctor import lines

    for line in lines():
        print(line)


def main() -> None:
    """Entry point: refusals exit with 2, an interrupt with 130, as pipeline stages do."""
    run(app, offline=False)
