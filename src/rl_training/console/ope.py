"""The commands `rl-training ope` (rank policies by logged data) and `select` (choose a trial of a study)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_training.console.options import AllowImport, AsJson
from rl_training.display.output import flags, note, show_json, show_table, warn
from rl_training.display.text import duration, rounded
from rl_training.off_policy_evaluation import defaults

if TYPE_CHECKING:
    from rl_training.off_policy_evaluation.choosing import Estimate, Selection
    from rl_training.off_policy_evaluation.evaluation import OPEResult, PolicyEstimate

# Resolution of the progress bar.
_PARTS = 1_000
# Exit code of a selection that abstains.
ABSTAINED = 5
# Seconds between two progress lines.
_LINE_SECONDS = 10.0


def _fraction(text: str) -> Any:
    return typer.Option("--validation-fraction", min=0.0, max=0.99, help=text)


# Options of the commands.
Bootstraps = Annotated[
    int,
    typer.Option(
        min=1,
        help=f"Resamples of the episodes, {defaults.BOOTSTRAPS:,} unless given; 1 uses the data once.",
        show_default=False,
    ),
]
Updates = Annotated[
    int,
    typer.Option(
        min=10, metavar="N", help=f"Updates of FQE, {defaults.UPDATES:,} unless given.", show_default=False
    ),
]
Fraction = Annotated[float, _fraction("Use only the episodes that training with this fraction held out.")]
OwnFraction = Annotated[
    float | None, _fraction("Use only the episodes held out in training; by default the trials' own fraction.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of networks, minibatches and resamples.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of FQE: gamma, tau, learning_rate, weight_decay."),
]
Stochastic = Annotated[bool, typer.Option("--stochastic", help="Evaluate the policies with sampled actions.")]


def ope(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders or checkpoints.")],
    dataset: Annotated[str, typer.Option(metavar="FILE", help="Logged data: .npz, .hdf5 or a Minari id.")],
    method: Annotated[
        Literal["fqe", "wis", "dr"],
        typer.Option(help="fqe; wis or dr need discrete actions with logged probabilities."),
    ] = "fqe",
    bootstraps: Bootstraps = defaults.BOOTSTRAPS,
    updates: Updates = defaults.UPDATES,
    validation_fraction: Fraction = defaults.VALIDATION_FRACTION,
    stochastic: Stochastic = False,
    seed: Seed = defaults.SEED,
    device: Device = defaults.DEVICE,
    settings: Settings = None,
    as_json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Rank policies by logged data, without an environment: values, intervals and agreement of resampled data."""
    from rl_training.off_policy_evaluation.evaluation import ope as evaluate

    with _progress() as watch:
        found = evaluate(
            runs,
            dataset,
            method=method,
            bootstraps=bootstraps,
            updates=updates,
            validation_fraction=validation_fraction,
            stochastic=stochastic,
            seed=seed,
            device=device,
            allow_import=allow_import,
            watch=watch,
            warn=warn,
            **_settings(settings, context),
        )
    if as_json:
        show_json(found.to_dict())
    else:
        show_result(found)


def select(
    context: typer.Context,
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder, studies/NAME.")],
    by: Annotated[
        Literal["fqe", "return"],
        typer.Option(help="Select by fqe on logged data, or by the return of evaluations."),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Logged data; by default the training data, with --episodes none."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="The task or the environment, if the study has several.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Select despite reasons to abstain (exit code 5).")
    ] = False,
    episodes: Annotated[
        int | None,
        typer.Option(min=2, metavar="K", help="Play K episodes in the environment instead of fitting FQE."),
    ] = None,
    bootstraps: Annotated[int, typer.Option(min=2, help="Critics, each on its own resample of the episodes.")] = (
        defaults.CRITICS
    ),
    updates: Annotated[int, typer.Option(min=10, metavar="N", help="Updates of FQE.")] = defaults.SELECTION_UPDATES,
    validation_fraction: OwnFraction = None,
    stochastic: Stochastic = False,
    seed: Seed = defaults.SEED,
    device: Device = defaults.DEVICE,
    settings: Settings = None,
    as_json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Select the best trial of a study, or abstain if the data do not support a choice (exit code 5)."""
    from rl_training.study.study import Study

    options: dict[str, Any] = {}
    with _progress("episodes" if episodes else "FQE") as watch:
        if by == "fqe":
            if dataset is not None or episodes is None:
                note("comparing the candidates' actions with the data")
            options = {
                "dataset": dataset,
                "anyway": anyway,
                "episodes": episodes,
                "bootstraps": bootstraps,
                "updates": updates,
                "validation_fraction": validation_fraction,
                "stochastic": stochastic,
                "seed": seed,
                "device": device,
                "allow_import": allow_import,
                "watch": watch,
                "warn": warn,
                **_settings(settings, context),
            }
        else:
            _refuse_options_of_fqe(context)
        found = Study(study).select(by, task=task, **options)
    if as_json:
        show_json(found.to_dict())
    else:
        _show_selection(found)
    if found.abstained:
        raise typer.Exit(ABSTAINED)


# Parameters of `select` that apply to both ways of selecting.
_OF_BOTH = {"study", "by", "task", "as_json", "allow_import"}


def _refuse_options_of_fqe(context: typer.Context) -> None:
    """Raise if an option is given that has no effect with --by return."""
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name not in _OF_BOTH and source is not None and source.name != "DEFAULT":
            raise typer.BadParameter(f"{one.opts[0]} is for --by fqe")


def _settings(texts: list[str] | None, context: typer.Context) -> dict[str, Any]:
    """Parse `KEY=VALUE` texts; a value is parsed as YAML. Raise if a key is an option of the command."""
    from rl_training.experiment.strict_yaml import parse_yaml
    from rl_training.off_policy_evaluation.evaluation import make_plan

    found, options = {}, {name for one in context.command.params for name in one.opts}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign or not value.strip():
            raise typer.BadParameter(f"--set {text!r}: expected KEY=VALUE")
        if (option := f"--{key.strip().replace('_', '-')}") in options:
            raise typer.BadParameter(f"--set {key.strip()}: use {option}")
        found[key.strip()] = parse_yaml(value, f"--set {key}").value
    make_plan(defaults.UPDATES, **found)  # raises if a key is not a setting but another argument
    return found


class _Lines:
    """Prints the share of `work` done and the estimated time left as plain lines."""

    def __init__(self, work: str) -> None:
        self._work = work
        self._began = self._next = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if share <= 0.0:
            self._began = self._next = now
        elif share < 1.0 and now >= self._next:
            left = (now - self._began) * (1.0 - share) / share
            note(f"{self._work}: {share:.1%} done, about {duration(left)} left")
            self._next = now + _LINE_SECONDS


@contextmanager
def _progress(work: str = "FQE") -> Iterator[Callable[[float], None]]:
    """Show a bar on a terminal, plain lines elsewhere, nothing if quiet."""
    from rl_training.display.progress import Progress

    if flags.quiet:
        yield lambda share: None
        return
    if not sys.stderr.isatty():
        yield _Lines(work)
        return
    progress = Progress(_PARTS, unit=f"‰ of {work}")
    try:
        yield lambda share: progress.advance(round(_PARTS * share))
    finally:
        progress.close()


def show_result(found: OPEResult) -> None:
    """Print the table of policies, notes on it, and the caveat."""
    from rl_training.off_policy_evaluation.evaluation import CAVEAT

    columns = ["rank", "value", "95 % interval", "same rank", "distance"]
    columns += ["clipped"] if found.updates is not None else []
    columns += ["effective episodes"] if found.method != "fqe" else []
    show_table([_row(one, columns) for one in found.policies], (*columns, "policy"))
    print(_basis(found))
    print(f"distance between the logged actions of similar states: {found.data_distance:.3f}")
    if tied := [str(one.rank) for one in found.policies if one.tied]:
        print(f"statistically indistinguishable from rank 1: rank {', '.join(tied)}")
    for text in found.notes:
        note(f"note: {text}")
    print(CAVEAT)


def _basis(found: OPEResult) -> str:
    """The data and the settings of an evaluation."""
    fitted = "" if found.updates is None else f", {found.updates:,} updates"
    which = f"{found.episodes:,} held-out" if found.held_out else f"all {found.episodes:,}"
    return (
        f"\n{found.method} on {found.rows:,} rows, {which} episodes of {found.dataset}: discount "
        f"{found.gamma:g}, bootstraps {found.bootstraps}{fitted}, seed {found.seed}"
    )


def _row(one: PolicyEstimate, columns: list[str]) -> list[str]:
    value, interval = _interval(one)
    cells = {
        "rank": "–" if one.rank is None else str(one.rank),
        "value": value,
        "95 % interval": interval,
        "same rank": "–" if one.agreement is None else f"{one.agreement:.0%}",
        "distance": f"{one.distance:.3f}",
        "clipped": "–" if one.clipped is None else f"{one.clipped:.1%}",
        "effective episodes": "–" if one.effective_episodes is None else f"{one.effective_episodes:.1f}",
    }
    return [*(cells[column] for column in columns), one.name]


def _show_selection(found: Selection) -> None:
    if found.by == "fqe":
        _show_candidates(found)
    else:
        rows = [
            [str(rank), f"{found.scores[name]:.2f}", f"{value:.2f}", name]
            for rank, (name, value) in enumerate(found.ranking, start=1)
        ]
        show_table(rows, ("rank", "configuration", "return", "trial"))
        print("\nthe best seed of the configuration with the highest interquartile mean of returns")
    for text in found.notes:
        note(f"note: {text}")
    for text in found.warnings:
        warn(text)
    for reason in found.reasons:
        print(f"reason to abstain: {reason}")
    if found.trial is None:
        playing = ", --episodes K plays episodes" if found.playable else ""
        print(f"no trial is selected; nearest to the data: {found.safe}; --anyway selects{playing}")
    else:
        print(f"take {found.trial}: {found.checkpoint}")


def _show_candidates(found: Selection) -> None:
    """Print each candidate with its share of actions outside the data and its interval, and the anchors."""
    played = any(one.episodes for one in found.candidates)
    rows = [
        [
            "–" if one.outside is None else f"{one.outside:.1%}",
            *_interval(one.estimate),
            *([str(one.episodes)] if played else []),
            one.name,
        ]
        for one in found.candidates
    ]
    value = ("return", "95 % interval", "episodes") if played else ("value", "95 % interval")
    show_table(rows, ("outside the data", *value, "trial"))
    if found.judgement is not None:
        print(_basis(found.judgement))
        for text in found.judgement.notes:
            note(f"note: {text}")
    for name, anchor in (("the data's own return", found.data), ("FQE of a clone of the data", found.clone)):
        if anchor is not None:
            mean, interval = _interval(anchor)
            print(f"{name}: {mean} ({interval})")
    print(f"time: {duration(found.seconds)}")


def _interval(one: Estimate | PolicyEstimate | None) -> tuple[str, str]:
    """A value and its interval."""
    if one is None:
        return "–", "–"
    return rounded(one.value), "–" if one.low is None else f"{rounded(one.low)} to {rounded(one.high)}"
