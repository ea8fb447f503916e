"""The command line `rl-training`.

Each command imports what it needs, so that `--help` and usage errors do not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_training import __version__
from rl_training.console.datasets import datasets
from rl_training.console.environments import check_env
from rl_training.console.errors import OneLineGroup, ended_by_signals
from rl_training.console.fine_tuning import finetune
from rl_training.console.listing import runs
from rl_training.console.ope import ope, select
from rl_training.console.options import (
    POLICY,
    AllowImport,
    AsJson,
    OutputDir,
    Overrides,
    Policy,
    RunDevice,
    Seeds,
    number,
    require_one,
)
from rl_training.console.reports import plot, report
from rl_training.console.studies import status, studies, sweep, tune, work
from rl_training.display.output import flags, note, show_json, show_table, warn
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.experiment.config import LoadedConfig

main = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Online, offline and offline-to-online reinforcement learning.",
)
main.add_typer(datasets, name="dataset")
main.add_typer(studies, name="study")
main.command("check-env")(check_env)
for command in (finetune, sweep, work, status, tune, select, ope, runs, report, plot):
    main.command()(command)

Stochastic = Annotated[bool, typer.Option("--stochastic", help="Sample the policy's actions.")]
EpisodeSeed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the episodes; by default that of evaluations.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"rl-training {__version__}")
        raise typer.Exit


@main.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results and warnings only.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    flags.debug, flags.quiet = debug, quiet


def _config_names() -> list[str]:
    from rl_training.experiment.config import packaged_configs

    return packaged_configs()


def _algorithms() -> list[str]:
    from rl_training.experiment.registry import algorithm_names, installed_names

    return [*algorithm_names(), *installed_names()]


ConfigSource = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="PATH|ALGO/NAME", help="A YAML file or a packaged config.", autocompletion=_config_names
    ),
]
Algorithm = Annotated[
    str | None, typer.Option(metavar="NAME|MODULE:CLASS", help="The algorithm.", autocompletion=_algorithms)
]


@main.command()
def train(
    config: ConfigSource = None,
    algo: Algorithm = None,
    env: Annotated[str | None, typer.Option(metavar="ID", help="The environment.")] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="N", help="Environment steps, 1e5 for example; offline, updates.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="FILE|ID", help="Data: an .npz or .hdf5 file, or a Minari id.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="By default that of the config, or 0.")] = None,
    seeds: Seeds = None,
    device: RunDevice = None,
    output_dir: OutputDir = None,
    overrides: Overrides = None,
    init_from: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Start from the networks of this run.")
    ] = None,
    allow_import: AllowImport = False,
) -> None:
    """Train in a new run folder, from --config, or from --algo, --env and --steps, which override a config."""
    if config is None and algo is None:
        raise typer.BadParameter("give --config, or --algo, --env and --steps")
    require_one(seed, seeds)
    from rl_training.experiment.registry import algorithm_name

    given = {
        "algo": algo,
        "env_id": env,
        "total_timesteps": None if steps is None else number(steps),
        "seed": seed,
        "seeds": seeds,
        "device": device,
        "output_dir": output_dir,
        "init_from": init_from,
        "allow_import": allow_import or None,
    }
    if algo is not None:
        algorithm_name(algo, allow_import=allow_import)
    loaded = _loaded(config, overrides or (), {name: value for name, value in given.items() if value is not None})
    with _explained(loaded):
        chosen = loaded.config
        algorithm_name(chosen.algo, chosen.plugin, allow_import=chosen.allow_import)
        from rl_training.api.data import require_one_source, resolve_data
        from rl_training.console.results import show_results
        from rl_training.experiment.manager import ExperimentManager
        from rl_training.runs.spec import RunOptions

        require_one_source(dataset, overrides or ())
        chosen, _ = resolve_data(dataset, chosen)
        if config is None and chosen.env_id is not None and chosen.eval_episodes:
            interval = max(1, chosen.total_timesteps // 10)
            chosen = chosen.replace(algo_kwargs={"eval_interval": interval, **chosen.algo_kwargs})
        options = RunOptions(quiet=flags.quiet, text=loaded.text)
        results = ExperimentManager().train_all(chosen, options=options)
    show_results(results)


def _loaded(
    config: str | None, overrides: Sequence[str] = (), options: dict[str, Any] | None = None
) -> LoadedConfig:
    """Load a configuration; print a note if it was found in another place than the given path."""
    from rl_training.experiment.config import load_config
    from rl_training.experiment.registry import setting_names

    loaded = load_config(config, overrides, options=options, owners=setting_names)
    if loaded.note is not None:
        note(loaded.note)
    return loaded


@contextmanager
def _explained(loaded: LoadedConfig) -> Iterator[None]:
    """Prefix the error of a wrong setting with its file and line, or with the option that set it."""
    try:
        yield
    except ConfigError as error:
        raise loaded.explain(error) from error


@main.command()
def resume(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_DIR|CHECKPOINT", help="A run folder, or one of its checkpoints.")
    ],
    overrides: Overrides = None,
    device: RunDevice = None,
    alone: Annotated[bool, typer.Option("--alone", help="Resume this member without its population.")] = False,
    allow_import: AllowImport = False,
) -> None:
    """Resume a run from its newest valid checkpoint; a member of a population is resumed with all members."""
    from rl_training.console.results import show_results
    from rl_training.experiment.manager import ExperimentManager

    changes = {"allow_import": allow_import} | ({} if device is None else {"device": device})
    results = ExperimentManager().resume_all(
        path, alone=alone, changes=changes, overrides=overrides or (), quiet=flags.quiet, warn=warn
    )
    show_results(results)


def evaluate(
    path: Policy = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Number of episodes; by default the run's eval_episodes.")
    ] = None,
    seed: EpisodeSeed = None,
    stochastic: Stochastic = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Evaluate the policy, by default on the episodes of every evaluation; --json includes each episode."""
    from rl_training.console.results import evaluation_rows
    from rl_training.runtime.workflows import play_checkpoint

    place = _checkpoint_given(path, checkpoint)
    note(f"evaluating {place}")
    changes = {"allow_import": allow_import}
    metrics, played = play_checkpoint(
        place, episodes, seed=seed, stochastic=stochastic, changes=changes, overrides=overrides or (), say=note
    )
    if as_json:
        show_json({**metrics, **played.episodes()})
    else:
        show_table(evaluation_rows(metrics))


main.command("evaluate")(evaluate)
main.command("eval", hidden=True)(evaluate)


@main.command()
@ended_by_signals()
def record(
    run: Annotated[Path, typer.Argument(metavar="CHECKPOINT|RUN_DIR", help=POLICY)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A new .mp4 or .gif file.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 1,
    seed: EpisodeSeed = None,
    fps: Annotated[
        float | None, typer.Option(help="Frames per second; by default those of the environment.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Maximum number of steps per episode.")] = None,
    stochastic: Stochastic = False,
    overrides: Overrides = None,
    allow_import: AllowImport = False,
) -> None:
    """Record a video of the policy: the first episodes of an evaluation, or episodes of another seed."""
    from rl_training.console.results import show_recording
    from rl_training.runtime.workflows import record_checkpoint

    place = _checkpoint_given(run, None)
    note(f"recording {place}")
    made = record_checkpoint(
        place,
        output,
        episodes,
        seed=seed,
        fps=fps,
        max_steps=max_steps,
        stochastic=stochastic,
        changes={"allow_import": allow_import},
        overrides=overrides or (),
        say=note,
    )
    show_recording(made)


@main.command()
@ended_by_signals()
def export(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A new .onnx or .npz file.")],
    path: Policy = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions from a second input, noise.")
    ] = False,
    allow_import: AllowImport = False,
) -> None:
    """Export the policy to a file that needs neither this package nor torch; its actions are checked first."""
    from rl_training.console.results import show_exported
    from rl_training.export.writing import export_checkpoint

    place = _checkpoint_given(path, checkpoint)
    note(f"exporting {place}")
    show_exported(
        export_checkpoint(place, output, deterministic=False if stochastic else None, allow_import=allow_import)
    )


@main.command()
def predict(
    observations: Annotated[
        str,
        typer.Option("--obs", help='"1.0,0.0,0.1", JSON (one, a batch, or {"key": …}), @file.json or @file.npy.'),
    ],
    path: Policy = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    stochastic: Stochastic = False,
    allow_import: AllowImport = False,
) -> None:
    """Print the action for an observation, or one per row of a batch, as JSON."""
    import numpy as np

    from rl_training.console.observations import parse_observations
    from rl_training.runtime.loading import load_policy, open_checkpoint

    loaded = load_policy(open_checkpoint(_checkpoint_given(path, checkpoint)), allow_import=allow_import)
    if stochastic:
        loaded.require_stochastic()
    obs = parse_observations(observations, loaded.spaces)
    with np.errstate(over="ignore"):  # values that overflow float32 are rejected as infinite
        actions = loaded.predict(obs, deterministic=False if stochastic else None)
    print(json.dumps(np.asarray(actions).tolist()))


def _checkpoint_given(path: Path | None, checkpoint: Path | None) -> Path:
    """The checkpoint given as the argument or with --checkpoint."""
    if (path is None) == (checkpoint is None):
        raise typer.BadParameter("give one checkpoint, as the argument or with --checkpoint")
    from rl_training.experiment.retention import find_checkpoint

    return find_checkpoint(path or checkpoint or Path(), warn)


@main.command()
def algos(as_json: AsJson = False) -> None:
    """List the algorithms, including those of other installed packages."""
    from rl_training.experiment.registry import get_algorithm_spec, installed_names, list_algorithm_specs
    from rl_training.importing import installed_algorithms

    specs, added = list_algorithm_specs(), installed_names()
    for name, entries in installed_algorithms().items():
        if name not in added:
            warn(f"algo: {entries[0].value} is ignored: {name!r} is an algorithm of this package")
            continue
        try:
            specs.append(get_algorithm_spec(name))
        except ConfigError as error:
            warn(str(error))
    header = ("name", "title", "year", "regime", "actions")
    rows = [(spec.name, spec.title, spec.year, spec.regime, spec.actions) for spec in specs]
    if as_json:
        show_json([dict(zip(header, row)) for row in rows])
    else:
        show_table([["" if cell is None else str(cell) for cell in row] for row in rows], header)


@main.command()
def configs(
    name: Annotated[
        str | None, typer.Argument(metavar="ALGO[/NAME]", help="The algorithm, or the configuration to print.")
    ] = None,
) -> None:
    """List the packaged configurations, all or of one algorithm, or print one."""
    from rl_training.experiment.config import load_config, packaged_configs

    listed = [one for one in packaged_configs() if name is None or one.startswith(f"{name}/")]
    if name is not None and not listed:
        print(_loaded(name).text, end="")
        return
    loaded = [(packaged, load_config(packaged).config) for packaged in listed]
    rows = [(packaged, config.env_id or "none", f"{config.total_timesteps:,}") for packaged, config in loaded]
    show_table(rows, header=("name", "environment", "total_timesteps"))


@main.command()
def prune(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of runs.")],
    keep: Annotated[Literal["best", "last"], typer.Option(help="Keep only best/, or also the last checkpoint.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also prune runs that are neither finished nor stopped.")
    ] = False,
) -> None:
    """Delete checkpoints to free disk space; best/ is always kept."""
    from rl_training.console.pruning import find_runs, prune_run
    from rl_training.memory import human_bytes

    pruned = [prune_run(run, keep, force=force) for run in find_runs(runs)]
    show_table([(str(one.run), human_bytes(one.freed), one.remark) for one in pruned])
    print(f"freed {human_bytes(sum(one.freed for one in pruned))}")


@main.command()
def doctor(
    output_dir: Annotated[Path, typer.Option(help="The output folder to check.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check this machine: versions, device, MuJoCo, memory, disk, optional packages."""
    from rl_training.console.doctor import examine

    findings = examine(output_dir)
    broken = [finding.subject for finding in findings if finding.state == "broken"]
    if as_json:
        show_json(findings)
    else:
        show_table([(finding.state, finding.subject, finding.text) for finding in findings])
        print(f"broken: {', '.join(broken)}" if broken else "everything a run needs works")
    if broken:
        raise typer.Exit(1)
