"""`breakeven sweep -m key=a,b ...`: Hydra's multirun, each job a DVC experiment in a child process.

Hydra enumerates the jobs and hands them to its launcher. The default launcher runs them one after the other; with
`pip install hydra-submitit-launcher` add `hydra/launcher=submitit_slurm` (one Slurm job each), with
`pip install hydra-ray-launcher` add `hydra/launcher=ray +hydra.launcher.ray.remote.max_retries=0` (Ray retries killed
jobs three times otherwise). Jobs need the repository on a file system that all workers share. Timed sections never
overlap on one machine, whatever the launcher (`breakeven.locking`).

Nothing about a sweep is stored apart from its experiments: the same command again finds the finished ones by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import hydra
import typer
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from breakeven import config, dvc_experiment, guard, io, params
from breakeven.dvc_experiment import JobResult
from breakeven.errors import BreakevenError, ConfigError
from breakeven.paths import workspace
from breakeven.tracking import provenance

_MULTIRUN = ("-m", "--multirun")
_OUTPUT = Path("outputs/sweep")


def sweep(arguments: Sequence[str]) -> int:
    """Run every combination of the overrides; print a table; return 0 if all jobs are finished, else 1.

    Args:
        arguments: Hydra overrides; `-m` may be left out.

    Raises:
        ConfigError: a job would be refused; nothing was run.
    """
    overrides = [argument for argument in arguments if argument not in _MULTIRUN]
    options = [override for override in overrides if override.startswith("-")]
    if options:
        raise ConfigError(
            f"unknown option {options[0]}. Give key=a,b overrides; hydra/launcher=... chooses a launcher."
        )
    if not overrides:
        raise ConfigError("nothing to sweep over. Example: breakeven sweep -m hardware=cpu_bf16,cpu_fp32")
    root = workspace()
    if not provenance.commit():
        raise BreakevenError("a sweep saves experiments on a commit: run `git init` and commit the repository first.")
    jobs = plan(overrides)
    sweep_id = io.sha256_json([sorted(overrides), provenance.commit(), provenance.patch()])[:10]
    folder = root / _OUTPUT / sweep_id
    typer.echo(f"sweep {sweep_id}: {len(jobs)} jobs, logs under {folder.relative_to(root)}")
    for old in folder.glob("*/job.json"):
        old.unlink()
    dvc_experiment.remove_abandoned(root)
    _multirun(_run, [*overrides, f"hydra.sweep.dir={folder}"])
    results = [_collect(folder / str(number), number, job) for number, job in enumerate(jobs)]
    typer.echo(table(results))
    return 0 if all(result.ok for result in results) else 1


def plan(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every job, after checking each composed configuration. Runs nothing.

    Raises:
        ConfigError: names every job that would be refused, and why.
    """
    jobs: list[list[str]] = []
    refused: list[str] = []

    def check(composed: DictConfig) -> None:
        job = list(HydraConfig.get().overrides.task)
        jobs.append(job)
        try:
            # Through plain containers, as from a file: merging two typed nodes would let an added key (+typo=1) pass.
            plain = OmegaConf.create(OmegaConf.to_container(composed, resolve=True))
            assert isinstance(plain, DictConfig)
            guard.check_registries(config.from_dictconfig(plain))
        except ConfigError as error:
            refused.append(f"{' '.join(job)}: {error}")

    # Planned in this process, whatever launcher will run the jobs.
    quiet = ["hydra/launcher=basic", "hydra.output_subdir=null", f"hydra.sweep.dir={_OUTPUT / 'plan'}"]
    _multirun(check, [*(o for o in overrides if not o.lstrip("+~").startswith("hydra")), *quiet])
    if refused:
        raise ConfigError("refused, nothing was run:\n  " + "\n  ".join(refused))
    return jobs


def _run(_: DictConfig) -> None:
    """One job, in whichever process the launcher chose. A failure is a result, so that the neighbours run."""
    context = HydraConfig.get()
    folder = Path(context.runtime.output_dir)
    dvc_experiment.run_job(
        number=int(context.job.num),
        overrides=list(context.overrides.task),
        root=Path(context.runtime.cwd),
        folder=folder,
        sweep_id=Path(context.sweep.dir).name,
    )


def _multirun(task: Callable[[DictConfig], None], overrides: Sequence[str]) -> None:
    """Let Hydra enumerate and launch.

    Raises:
        ConfigError: Hydra refuses an override.
    """
    conf = workspace() / "conf"
    silent = ["hydra/job_logging=none", "hydra/hydra_logging=none"]  # each job says itself what it does
    main = hydra.main(version_base="1.3", config_path=str(conf), config_name=params.CONFIG_NAME)(task)
    with _arguments(["breakeven", "--multirun", *silent, *overrides]):
        try:
            main()
        except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
            raise params.explain(error, conf) from error


@contextmanager
def _arguments(argv: list[str]) -> Iterator[None]:
    """hydra.main reads sys.argv, and raises instead of exiting only with HYDRA_FULL_ERROR."""
    with mock.patch.object(sys, "argv", argv), mock.patch.dict(os.environ, {"HYDRA_FULL_ERROR": "1"}):
        yield


def _collect(folder: Path, number: int, overrides: list[str]) -> JobResult:
    try:
        return JobResult.load(folder)
    except BreakevenError:
        # The launcher's worker itself died (a Slurm job that was cancelled).
        return JobResult(number, "", overrides, "killed", -1, 0.0, str(folder / "job.log"))


def table(results: Sequence[JobResult]) -> str:
    """Return the jobs as text: state, duration, experiment name and overrides; then how to go on."""
    lines = [f"{'job':>4} {'state':<9} {'seconds':>8}  experiment"]
    for result in results:
        lines.append(f"{result.number:>4} {result.state:<9} {result.seconds:>8.1f}  {result.name}")
        lines.append(f"{'':>24} {' '.join(result.overrides)}")
    unfinished = [result for result in results if not result.ok]
    if unfinished:
        lines.append(f"{len(unfinished)} of {len(results)} jobs are unfinished; their logs end with the reason:")
        lines += [f"  {result.log}" for result in unfinished]
        lines.append("Run the same command again: it runs only these.")
    else:
        lines.append(f"all {len(results)} jobs are finished. Compare them with `breakeven ui` or `dvc exp show`.")
    return "\n".join(lines)
