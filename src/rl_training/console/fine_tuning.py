"""The command `finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.console.options import AllowImport, OutputDir, Overrides, RunDevice, Seeds, number, require_one
from rl_training.display.output import flags


def finetune(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN_DIR|CHECKPOINT", help="An offline run; with --seeds, {seed} is each seed."),
    ],
    steps: Annotated[str, typer.Option(metavar="N", help="Environment steps, 5e4 for example.")],
    env: Annotated[str | None, typer.Option(metavar="ID", help="By default the environment of the run.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="By default the seed of the run.")] = None,
    seeds: Seeds = None,
    device: RunDevice = None,
    output_dir: OutputDir = None,
    overrides: Overrides = None,
    allow_import: AllowImport = False,
) -> None:
    """Continue an offline run in the environment, in a new run folder, with its algorithm, settings and data."""
    from rl_training.console.results import show_results
    from rl_training.experiment.manager import ExperimentManager
    from rl_training.runs.spec import RunOptions
    from rl_training.runtime.fine_tuning import fine_tuning_config

    require_one(seed, seeds)
    given = {
        "total_timesteps": number(steps),
        "env_id": env,
        "seed": seed,
        "seeds": seeds,
        "device": device,
        "output_dir": output_dir,
        "allow_import": allow_import or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    config = fine_tuning_config(run, changes, overrides or ())
    show_results(ExperimentManager().train_all(config, options=RunOptions(quiet=flags.quiet)))
