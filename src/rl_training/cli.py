"""`rl-training`: a thin skin over the registry, the workflows and the data formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rl_training.console.datasets import datasets
from rl_training.console.doctor import examine
from rl_training.console.environments import check_env
from rl_training.console.errors import OneLineGroup
from rl_training.console.observations import parse_observations
from rl_training.console.output import flags, note, show_table, warn
from rl_training.console.results import evaluation_rows, show_result
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.experiment.config import LoadedConfig, load_config, packaged_configs
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runtime.run import Launch
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training

main = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Online, offline and offline-to-online reinforcement learning.",
)
main.add_typer(datasets, name="dataset")
main.command("check-env")(check_env)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AllowImport = Annotated[bool, typer.Option("--allow-import", help="Permit an env id of the form module:Env.")]


@main.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results and warnings only.")] = False,
) -> None:
    flags.debug, flags.quiet = debug, quiet


@main.command()
def train(
    config: Annotated[str, typer.Option(metavar="PATH|ALGO/NAME", help="A YAML file or a packaged config.")],
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    device: Device = None,
    output_dir: Annotated[str | None, typer.Option(help="Folder that receives the run folder.")] = None,
    overrides: Overrides = None,
    init_from: Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="Start from its networks.")] = None,
    allow_import: AllowImport = False,
) -> None:
    """Train from a configuration, in a new run folder."""
    loaded = _loaded(config, overrides or ())
    given = {"seed": seed, "device": device, "output_dir": output_dir, "init_from": init_from}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if allow_import:
        changes["allow_import"] = True
    with _explained(loaded, changes):
        launch = Launch(quiet=flags.quiet, text=loaded.text)
        result = ExperimentManager().train(loaded.config.replace(**changes), launch=launch)
    show_result(result)


def _loaded(config: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """A configuration, having said where it was found if that is not where the user pointed."""
    loaded = load_config(config, overrides)
    if loaded.note is not None:
        note(loaded.note)
    return loaded


@contextmanager
def _explained(loaded: LoadedConfig, options: dict[str, Any]) -> Iterator[None]:
    """Put the file and line of a wrong setting in front of its error, unless an option gave it."""
    try:
        yield
    except ConfigError as error:
        if error.key in options:
            raise
        raise loaded.explain(error) from error


@main.command()
def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN_DIR|CHECKPOINT")],
    overrides: Overrides = None,
    device: Device = None,
    allow_import: AllowImport = False,
) -> None:
    """Go on with a run where its newest valid checkpoint stands."""
    changes: dict[str, Any] = {} if device is None else {"device": device}
    if allow_import:
        changes["allow_import"] = True
    result = resume_training(path, changes=changes, overrides=overrides or (), quiet=flags.quiet, warn=warn)
    show_result(result)


def evaluate(
    path: Annotated[Path | None, typer.Argument(metavar="CHECKPOINT|RUN_DIR")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1)] = None,
    overrides: Overrides = None,
    allow_import: AllowImport = False,
) -> None:
    """Play episodes on fixed seeds with the deterministic policy."""
    place = _checkpoint_given(path, checkpoint)
    note(f"evaluating {place}")
    changes = {"allow_import": True} if allow_import else {}
    metrics = evaluate_checkpoint(place, episodes, changes=changes, overrides=overrides or ())
    show_table(evaluation_rows(metrics))


main.command("evaluate")(evaluate)
main.command("eval", hidden=True)(evaluate)


@main.command()
def predict(
    observations: Annotated[
        str, typer.Option("--obs", help='"1.0,0.0,0.1", a JSON list or batch, @file.json or @file.npy.')
    ],
    path: Annotated[Path | None, typer.Argument(metavar="CHECKPOINT|RUN_DIR")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample the policy's actions.")] = False,
) -> None:
    """Print the action for an observation, or one per row of a batch, as JSON."""
    obs = parse_observations(observations)
    place = _checkpoint_given(path, checkpoint)
    with np.errstate(over="ignore"):  # what does not fit float32 is refused as infinite
        actions = predict_checkpoint(place, obs, deterministic=not stochastic)
    print(json.dumps(np.asarray(actions).tolist()))


def _checkpoint_given(path: Path | None, checkpoint: Path | None) -> Path:
    """The checkpoint meant by the argument or the option."""
    if (path is None) == (checkpoint is None):
        raise typer.BadParameter("give one checkpoint, as the argument or with --checkpoint")
    return find_checkpoint(path or checkpoint or Path(), warn)


@main.command()
def algos() -> None:
    """List the algorithms."""
    rows = [(spec.name, spec.title, str(spec.year), spec.regime) for spec in list_algorithm_specs()]
    show_table(rows, header=("name", "title", "year", "regime"))


@main.command()
def configs(
    name: Annotated[str | None, typer.Argument(metavar="ALGO/NAME", help="Print this one.")] = None,
) -> None:
    """List the packaged configurations, or print one."""
    if name is not None:
        print(_loaded(name).text, end="")
        return
    loaded = [(packaged, load_config(packaged).config) for packaged in packaged_configs()]
    rows = [(packaged, config.env_id or "none", f"{config.total_timesteps:,}") for packaged, config in loaded]
    show_table(rows, header=("name", "environment", "total_timesteps"))


@main.command()
def doctor(
    output_dir: Annotated[Path, typer.Option(help="Where runs would be written.")] = Path("runs"),
) -> None:
    """Check this machine: versions, device, MuJoCo, memory, disk, optional packages."""
    findings = examine(output_dir)
    show_table([(finding.state, finding.subject, finding.text) for finding in findings])
    broken = [finding.subject for finding in findings if finding.state == "broken"]
    if broken:
        print(f"broken: {', '.join(broken)}")
        raise typer.Exit(1)
    print("everything a run needs works")
