"""Choosing without an environment: twelve settings of IQL on logged data, and which of them FQE takes.

    python -m benchmarks.choosing --data DIR [--files hopper-medium+hopper-expert] [--updates 100000]
                                  [--fqe-updates 20000] [--bootstraps 3] [--episodes 100] [--device cuda]
                                  [--folder runs/choosing] [--json FILE]

A study trains every setting on the files (`DIR/<name>.npz`, joined with `+`), as members of one population; nothing
is evaluated meanwhile. `Study.select` then ranks their last policies by FQE on the same data. What each is really
worth is played afterwards: its mean discounted return (`benchmarks.ope.truth`: FQE's discount, no time limit), with
which FQE's values are compared, and the usual undiscounted return. The packaged configuration is one of the twelve:
it is what one would take without choosing. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.evidence.judging import judged
from benchmarks.offline import config_name, paths
from benchmarks.ope import GAMMA, agreement, truth
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.runs import dataset_settings
from rl_training.experiment.config import load_config
from rl_training.experiment.retention import find_checkpoint
from rl_training.off_policy_evaluation.policies import Candidate
from rl_training.study.study import Study
from rl_training.study.trials import home_of

GRID: dict[str, list[float]] = {"expectile": [0.5, 0.7, 0.9], "beta": [1.0, 3.0, 6.0, 10.0]}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the npz files")
    parser.add_argument("--files", default="hopper-medium+hopper-expert")
    parser.add_argument("--config", help="by default iql/<files>, a mixture of medium and expert as medium-expert")
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--fqe-updates", type=int, default=20_000)
    parser.add_argument("--bootstraps", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="that tell what a policy returns")
    parser.add_argument("--device", default=report.default_device())
    parser.add_argument("--processes", type=int, help="that play side by side; by default one per core")
    parser.add_argument("--folder", type=Path, default=Path("runs/choosing"), help="where the study is kept")
    parser.add_argument("--json", type=Path, help="keep results here and leave the documentation alone")
    return parser.parse_args(given)


def study_of(options: argparse.Namespace, base: str) -> Study:
    data = dataset_settings(paths(options.data.absolute(), options.files))
    settings = {
        **data,
        "total_timesteps": options.updates,
        "device": options.device,
        "eval_episodes": 0,
        "log_interval": max(1, options.updates // 10),
        "checkpoint_interval": options.updates,
        "keep_checkpoints": 1,
    }
    members = np.prod([len(values) for values in GRID.values()])
    plan = {"name": f"iql-{options.files.replace('+', '-')}", "base": base, "set": settings, "grid": GRID,
            "seeds": [0], "population": int(members), "threads": 1}  # fmt: skip
    return Study(plan, output_dir=options.folder)


def measure(options: argparse.Namespace) -> Entry:
    """Train, choose, and only then play."""
    source = options.config or config_name("iql", options.files)
    base = load_config(source).config
    usual = base.algo_kwargs
    if any(usual.get(key) not in values for key, values in GRID.items()):
        raise SystemExit(f"{source}: its {' and '.join(GRID)} are not among those that are tried")
    study = study_of(options, source)
    status = study.run(say=lambda text: print(text, flush=True))
    if status.failed:
        raise SystemExit(f"{len(status.failed)} trials failed; see {study.folder}")
    started = time.perf_counter()
    chosen = study.select(
        "fqe", updates=options.fqe_updates, bootstraps=options.bootstraps, device=options.device, gamma=GAMMA
    )
    judging = time.perf_counter() - started
    homes = {one.trial.name: home_of(study.folder, one.trial) for one in status.trials}
    places = {name: find_checkpoint(home) for name, home in homes.items()}
    truths = {name: found["returns"] for name, found in judged(places, options.processes, options.episodes)}
    if missing := sorted(set(homes) - set(truths)):
        raise SystemExit(f"{missing[0]} could not be played")
    discounted = {
        name: truth(str(base.env_id), Candidate.load(place), options.episodes) for name, place in places.items()
    }
    records = study.frame()
    settings = {
        record["trial"]: {key.rpartition(".")[2]: value for key, value in record["settings"].items()}
        for record in records
    }
    assert chosen.judgement is not None
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
            "default": all(usual[key] == of for key, of in settings[name].items()),
        }
        for name, value in chosen.ranking
    ]
    return report.stamp(options.device) | {
        "files": options.files,
        "updates": options.updates,
        "fqe_updates": options.fqe_updates,
        "bootstraps": options.bootstraps,
        "episodes": options.episodes,
        "trials": trials,
        "agreement": agreement(
            np.array([one["discounted"] for one in trials]), np.array([one["value"] for one in trials])
        ),
        "seconds": {"training": max(record["seconds"] for record in records), "judging": judging},
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
        "## Choosing without an environment\n\nWritten by `python -m benchmarks.choosing`: `select --by fqe` on "
        f"the data that the policies learned from; returns are of {episodes} episodes that nothing was chosen by, "
        f"with their standard error. FQE's values are compared with *discounted* returns (discount {GAMMA}, no "
        "time limit), by which policies are ranked; *return* is the usual undiscounted one. *Distance* is how far "
        "a policy's actions lie from the logged ones ([judging.md](judging.md)). – means that it was not recorded."
    )
    return {("results", "choosing"): "\n\n".join([head, *parts, report.origins(entries.values())])}


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    results = Results("choosing", options.json)
    entry = measure(options)
    results.add({f"{report.machine(options.device)}/{options.files}": entry})
    print(text_of(entry))
    results.render(sections)


if __name__ == "__main__":
    main()
