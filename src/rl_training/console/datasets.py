"""`rl-training dataset`: show, validate, convert, merge and collect data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.console.errors import ended_by_signals
from rl_training.console.options import AsJson

datasets = typer.Typer(no_args_is_help=True, help="Show, validate, convert, merge and collect data sets.")

Source = Annotated[str, typer.Argument(metavar="PATH|MINARI_ID", help="An .npz or .hdf5 file, or a Minari id.")]
_NEW = "A new .npz or .hdf5 file, or Minari id."
NewData = Annotated[str, typer.Option("--output", "-o", metavar="PATH|MINARI_ID", help=_NEW)]
Env = Annotated[str | None, typer.Option("--env", help="The environment the data belong to, for its spaces.")]
Low = Annotated[str | None, typer.Option(help="Lower action bounds if the file has none: -2 or -1,-2.")]
High = Annotated[str | None, typer.Option(help="Upper action bounds.")]
NumActions = Annotated[int | None, typer.Option(min=1, help="Number of discrete actions if the file has none.")]
Download = Annotated[bool, typer.Option("--download", help="Download a Minari data set that is not local.")]
Kind = Annotated[
    str | None, typer.Option(help="npz, hdf5 or minari, or module:function for your own; by default from the name.")
]
AllowImport = Annotated[
    bool, typer.Option("--allow-import", help="Permit an env id module:Env and a kind module:function.")
]


@datasets.command()
def show(
    source: Source,
    env: Env = None,
    action_low: Low = None,
    action_high: High = None,
    num_actions: NumActions = None,
    download: Download = False,
    kind: Kind = None,
    as_json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Print rows, episodes, returns, lengths and ranges."""
    from rl_training.console import dataset_tasks

    actions = dataset_tasks.action_space(action_low, action_high, num_actions)
    dataset_tasks.show(dataset_tasks.Source(source, kind, env, actions, download, allow_import), as_json=as_json)


@datasets.command()
def validate(
    source: Source,
    env: Env = None,
    action_low: Low = None,
    action_high: High = None,
    num_actions: NumActions = None,
    download: Download = False,
    kind: Kind = None,
    allow_import: AllowImport = False,
) -> None:
    """Run all checks made before training; exit with code 3 and one line per fault if the data are invalid."""
    from rl_training.console import dataset_tasks

    actions = dataset_tasks.action_space(action_low, action_high, num_actions)
    dataset_tasks.validate(dataset_tasks.Source(source, kind, env, actions, download, allow_import))


@datasets.command()
@ended_by_signals()
def convert(
    source: Source,
    target: Annotated[str, typer.Argument(metavar="PATH|MINARI_ID", help=_NEW)],
    to: Annotated[str | None, typer.Option("--to", help="npz, hdf5 or minari; by default from the name.")] = None,
    env: Env = None,
    action_low: Low = None,
    action_high: High = None,
    num_actions: NumActions = None,
    download: Download = False,
    kind: Kind = None,
    allow_import: AllowImport = False,
) -> None:
    """Copy a data set into another format; nothing is overwritten."""
    from rl_training.console import dataset_tasks

    actions = dataset_tasks.action_space(action_low, action_high, num_actions)
    dataset_tasks.convert(dataset_tasks.Source(source, kind, env, actions, download, allow_import), target, to)


@datasets.command()
@ended_by_signals()
def merge(
    sources: Annotated[
        list[str], typer.Argument(metavar="PATH|MINARI_ID…", help="Data sets with the same spaces.")
    ],
    output: NewData,
    env: Env = None,
    allow_import: AllowImport = False,
) -> None:
    """Write the episodes of several data sets to a new one, in their order."""
    from rl_training.console import dataset_tasks

    dataset_tasks.merge(sources, output, env, allow_import=allow_import)


@datasets.command()
@ended_by_signals()
def collect(
    env: Annotated[str, typer.Option("--env", help="A Gymnasium id.")],
    output: NewData,
    size: Annotated[int, typer.Option(min=1, help="Number of transitions.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the actions and the environment.")] = 0,
    policy: Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="By default actions are random.")] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample the policy's actions.")] = False,
    allow_import: AllowImport = False,
) -> None:
    """Collect transitions with random actions or a trained policy.

    If the policy was trained in this environment, its `env_kwargs` and `wrappers` are used.
    """
    from rl_training.console import dataset_tasks

    dataset_tasks.collect(env, output, size, seed, policy, stochastic=stochastic, allow_import=allow_import)


@datasets.command("from-run")
@ended_by_signals()
def from_run(
    run: Annotated[
        str, typer.Argument(metavar="RUN_DIR|CHECKPOINT", help="An online run, or one of its checkpoints.")
    ],
    output: NewData,
    allow_import: Annotated[bool, typer.Option("--allow-import", help="Permit an algorithm module:Class.")] = False,
) -> None:
    """Write the replay buffer of a run as a data set.

    Rows are written episode by episode, one environment after another. If `n_step` is 1, the buffer does not store
    time limits: an episode ends at a row whose next observation differs from the observation of the following row.
    If more was collected than the buffer holds, the oldest transitions are lost, and the first episodes are
    incomplete.
    """
    from rl_training.console import dataset_tasks

    dataset_tasks.from_run(run, output, allow_import=allow_import)
