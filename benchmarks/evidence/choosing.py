"""Choosing without an environment: which of twelve settings of IQL on logged data FQE takes, and what each returns.

    python -m benchmarks.evidence run benchmarks/studies/iql-choosing.yaml --data DIR
    python -m benchmarks.evidence.choosing runs/evidence/iql-choosing [--fqe-updates 20000] [--bootstraps 3]
                                           [--episodes 100] [--device cuda] [--json FILE]

The study trains every setting as members of one population. `Study.select` then ranks their last policies by FQE on
the data they learned from. Only afterwards are they played: their mean discounted return (`benchmarks.evidence.ope.
truth`: FQE's discount, no time limit), with which FQE's values are compared, and the usual undiscounted return. The
packaged configuration is one of the twelve: it is what one would take without choosing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.evidence.judging import judged
from benchmarks.evidence.ope import GAMMA, agreement, truth
from benchmarks.report import Entry, Results, Sections, number, table
from rl_training.experiment.config import load_config
from rl_training.experiment.retention import find_checkpoint
from rl_training.off_policy_evaluation.policies import Candidate
from rl_training.report.grouping import data_name
from rl_training.study.status import TrialStatus
from rl_training.study.study import Study
from rl_training.study.trials import home_of, record_of


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("study", type=Path, help="folder of a finished study")
    parser.add_argument("--config", default="iql/hopper-medium-expert", help="the configuration without choosing")
    parser.add_argument("--fqe-updates", type=int, default=20_000)
    parser.add_argument("--bootstraps", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="by which the return of a policy is measured")
    parser.add_argument("--device", default=report.default_device())
    parser.add_argument("--processes", type=int, help="that play at the same time; by default one per core")
    return parser.parse_args(given)


def finished(study: Study) -> Sequence[TrialStatus]:
    """Every trial of a study, all of which have to be done."""
    status = study.status()
    if status.counts["done"] < len(status.trials):
        raise SystemExit(f"{study.folder}: not every trial is done; first `python -m benchmarks.evidence run`")
    return status.trials


def measure(options: argparse.Namespace) -> Entry:
    """Choose, and only then play."""
    usual, study = load_config(options.config).config.algo_kwargs, Study(options.study)
    all_trials = finished(study)
    settings = {
        one.trial.name: {key.rpartition(".")[2]: value for key, value in one.settings.items()} for one in all_trials
    }
    default = [name for name, of in settings.items() if all(usual.get(key) == value for key, value in of.items())]
    if not default:
        keys = " and ".join(next(iter(settings.values())))
        raise SystemExit(f"{options.config}: its {keys} are not among those that are tried")
    started = time.perf_counter()
    chosen = study.select(
        "fqe", updates=options.fqe_updates, bootstraps=options.bootstraps, device=options.device, gamma=GAMMA
    )
    assert chosen.judgement is not None
    judging = time.perf_counter() - started
    homes = {one.trial.name: home_of(study.folder, one.trial) for one in all_trials}
    places = {name: find_checkpoint(home) for name, home in homes.items()}
    truths = {name: found["returns"] for name, found in judged(places, options.processes, options.episodes)}
    if missing := sorted(set(homes) - set(truths)):
        raise SystemExit(f"{missing[0]} could not be played")
    record = record_of(homes[default[0]])
    env_id = str(record["env_id"])
    discounted = {name: truth(env_id, Candidate.load(place), options.episodes) for name, place in places.items()}
    distances = {one.name: one.distance for one in chosen.judgement.policies}
    trials = [
        {
            "settings": settings[name],
            "value": value,
            "distance": distances[name],
            "discounted": discounted[name][0],
            "discounted_error": discounted[name][1],
            "truth": float(np.mean(truths[name])),
            "error": float(np.std(truths[name], ddof=1) / len(truths[name]) ** 0.5),
            "default": name in default,
        }
        for name, value in chosen.ranking
    ]
    return report.stamp(options.device) | {
        "files": data_name(str(record["dataset"]["name"])).replace(" ", ""),
        "updates": int(record["metrics"]["update_count"]),
        "fqe_updates": options.fqe_updates,
        "bootstraps": options.bootstraps,
        "episodes": options.episodes,
        "trials": trials,
        "agreement": agreement(
            np.array([one["discounted"] for one in trials]), np.array([one["value"] for one in trials])
        ),
        "seconds": {"training": max(one.seconds or 0.0 for one in all_trials), "judging": judging},
    }


def text_of(entry: Entry) -> str:
    trials: list[dict[str, Any]] = entry["trials"]
    like = "discounted" in trials[0]  # entries of earlier versions have undiscounted returns alone
    order = sorted(trials, key=lambda one: -one["discounted" if like else "truth"])
    rank = {id(one): place for place, one in enumerate(order, 1)}

    def worth(one: dict[str, Any]) -> str:
        return f"{one['discounted']:,.1f} ± {one['discounted_error']:,.1f}" if like else "–"

    def told(one: dict[str, Any]) -> str:
        value = f"{worth(one)} discounted, return " if like else ""
        return f"{value}{one['truth']:,.0f} ± {one['error']:,.0f}, rank {rank[id(one)]} of {len(trials)}"

    default = next(one for one in trials if one["default"])
    rows = [
        [
            ", ".join(f"{key} {value:g}" for key, value in one["settings"].items())
            + (" (the packaged configuration)" if one["default"] else ""),
            f"{one['value']:,.1f}",
            f"{one['distance']:.3f}" if "distance" in one else "–",
            worth(one),
            f"{one['truth']:,.0f} ± {one['error']:,.0f}",
            rank[id(one)],
        ]
        for one in trials
    ]
    found, seconds = entry["agreement"], entry["seconds"]
    agreed = (
        f"Spearman's correlation of FQE's values with the true discounted ones {found['spearman']:.2f}, regret "
        f"{found['regret']:.2f} of their range."
        if like
        else "Discounted returns were not played in this measurement: its ranks are of undiscounted returns, with "
        "which FQE's discounted values cannot be correlated."
    )
    words = (
        f"IQL on {entry['files']}, {len(trials)} settings, {entry['updates']:,} updates each, one seed. FQE "
        f"({entry['fqe_updates']:,} updates, {entry['bootstraps']} bootstraps) takes the first line: "
        f"{told(trials[0])}. The packaged configuration: {told(default)}. The best: {told(order[0])}. {agreed} "
        f"Training took {number(seconds['training'])} s, judging {number(seconds['judging'])} s."
    )
    return f"{words}\n\n{table(['settings', 'FQE', 'distance', 'discounted', 'return', 'rank'], rows)}"


def sections(entries: dict[str, Entry]) -> Sections:
    parts = [text_of(entry) for entry in entries.values()]
    episodes = next(iter(entries.values()))["episodes"]
    head = (
        "## Choosing without an environment\n\nWritten by `python -m benchmarks.evidence.choosing`: `select --by "
        f"fqe` on the data that the policies learned from; returns are of {episodes} episodes that nothing was "
        f"chosen by, with their standard error. FQE's values are compared with *discounted* returns (discount "
        f"{GAMMA}, no time limit), by which policies are ranked; *return* is the usual undiscounted one. "
        "*Distance* is how far a policy's actions lie from the logged ones ([judging.md](judging.md)). – means "
        "that it was not recorded."
    )
    return {("results", "choosing"): "\n\n".join([head, *parts, report.origins(entries.values())])}


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    results = Results("choosing", options.json)
    entry = measure(options)
    results.add({f"{report.machine(options.device)}/{entry['files']}": entry})
    print(text_of(entry))
    results.render(sections)


if __name__ == "__main__":
    main()
