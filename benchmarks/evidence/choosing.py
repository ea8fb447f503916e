"""Offline policy selection: which policy `select --by fqe` selects, or why it abstains, and the true returns.

    python -m benchmarks.evidence run benchmarks/studies/iql-choosing.yaml --data DIR
    python -m benchmarks.evidence.choosing runs/evidence/iql-choosing [--device cuda] [--json FILE]
    python -m benchmarks.evidence.choosing Pendulum-v1 | Hopper-v5 | HalfCheetah-v5 [--folder runs/ope]

The candidates are the trials of a finished offline study, evaluated on their training data, or eleven snapshots of
one SAC run, evaluated on the replay buffer of that run (`benchmarks.evidence.ope`). One more candidate, the
optimist, is TD3 trained on the same rows without regularisation towards the data.

The program selects a candidate with FQE, selects again with `--play` episodes in the environment, and estimates the
value of every candidate with FQE, whether it is eligible or not. Only then does it play the candidates. It writes
their mean returns and their mean discounted returns, which FQE's values are compared with.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import report
from benchmarks.evidence.judging import for_each, judged
from benchmarks.evidence.ope import RUNS, agreement, snapshots, truth
from benchmarks.report import Entry, Results, Sections, number, table
from rl_training import TD3BC, ope
from rl_training.console.dataset_tasks import from_run
from rl_training.data.datasets import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.retention import find_checkpoint
from rl_training.models.mlp import NetworkConfig
from rl_training.off_policy_evaluation import defaults
from rl_training.off_policy_evaluation.choosing import MOST_OUTSIDE, Selection, choose
from rl_training.off_policy_evaluation.policies import candidates
from rl_training.off_policy_evaluation.selecting import own_data
from rl_training.study.study import Study
from rl_training.study.trials import home_of, record_of

OPTIMIST = "optimist"


class Case(NamedTuple):
    """Named checkpoints, their environment, and the data used for the selection."""

    title: str
    env_id: str
    places: dict[str, Path]
    data: TransitionDataset


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("case", help=f"folder of a finished study, or {', '.join(RUNS)}")
    parser.add_argument("--folder", type=Path, default=Path("runs/ope"), help="folder for SAC runs and optimists")
    parser.add_argument("--updates", type=int, default=defaults.SELECTION_UPDATES)
    parser.add_argument("--critics", type=int, default=defaults.CRITICS)
    parser.add_argument("--hidden", type=int, default=256, help="width of FQE's two hidden layers")
    parser.add_argument(
        "--optimist-updates", type=int, default=20_000, help="updates of the optimist; 0: no optimist"
    )
    parser.add_argument("--play", type=int, default=20, help="episodes of the second selection; 0: none")
    parser.add_argument("--episodes", type=int, default=100, help="episodes that measure the return of a policy")
    parser.add_argument("--device", default=report.default_device())
    parser.add_argument("--processes", type=int, help="processes that play episodes; default: one per core")
    return parser.parse_args(given)


def case_of(options: argparse.Namespace) -> Case:
    if options.case in RUNS:
        run, saved = snapshots(options.case, options.device, options.folder)
        file = options.folder / f"{options.case}.npz"
        if not file.exists():
            from_run(str(run), str(file), allow_import=False)
        names = {place.name: place for place in saved}
        return Case("snapshots of one SAC run", options.case, names, TransitionDataset.load(file))
    study = Study(options.case)
    status = study.status()
    if status.counts["done"] < len(status.trials):
        raise SystemExit(f"{study.folder}: not every trial is done; first `python -m benchmarks.evidence run`")
    homes = {_settings(one.settings): home_of(study.folder, one.trial) for one in status.trials}
    configs = [TrainConfig.parse(one.settings) for one in status.plan.configurations]
    env_id = str(record_of(next(iter(homes.values())))["env_id"])
    places = {name: find_checkpoint(home) for name, home in homes.items()}
    return Case(f"trials of {study.folder.name}", env_id, places, own_data(configs))


def _settings(values: Any) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in values.items())


def optimist(case: Case, options: argparse.Namespace) -> Path:
    """Return a checkpoint of a policy that maximises Q over all actions; it is trained once and then reused."""
    folder = options.folder / f"optimist-{case.env_id}-{case.title.replace(' ', '-')}"
    if not folder.is_dir():
        settings: dict[str, Any] = {
            "bc_alpha": 1e6,
            "normalize_observations": True,
            "hidden_sizes": [options.hidden] * 2,
        }
        home: dict[str, Any] = {"output_dir": str(folder), "device": options.device}
        model = TD3BC(case.env_id, seed=0, eval_episodes=0, **settings, **home)
        model.learn(options.optimist_updates, dataset=case.data, progress_bar=False)
    return find_checkpoint(next(folder.iterdir()))


def timed(select: Callable[[], Selection]) -> Entry:
    started = time.perf_counter()
    found = select().to_dict()
    return {name: found[name] for name in ("trial", "candidates", "data", "clone", "reasons", "safe")} | {
        "seconds": time.perf_counter() - started
    }


def measure(options: argparse.Namespace) -> Entry:
    """Select a candidate, evaluate all of them with FQE, and only then play them."""
    case = case_of(options)
    places = dict(case.places)
    if options.optimist_updates:
        places[OPTIMIST] = optimist(case, options)
    common: dict[str, Any] = {
        "device": options.device,
        "network": NetworkConfig(hidden_sizes=(options.hidden,) * 2),
    }
    fitting = common | {"updates": options.updates, "bootstraps": options.critics}
    chosen = timed(lambda: choose(places, case.data, **fitting))
    print("selected:", chosen["trial"], chosen["reasons"], f"{chosen['seconds']:.0f} s", flush=True)
    played = timed(lambda: choose(places, case.data, episodes=options.play, **common)) if options.play else None
    values = ope(list(places.values()), case.data, gamma=defaults.SELECTION_GAMMA, **fitting)
    estimates = {str(one.checkpoint): one for one in values.policies}
    returns = {name: found["returns"] for name, found in judged(places, options.processes, options.episodes)}
    outside = {one["name"]: one["outside"] for one in chosen["candidates"]}
    discounted = partial(discounted_return, case.env_id, options.episodes)
    trials = []
    for (name, place), worth in zip(places.items(), for_each(discounted, list(places.values()), options.processes)):
        one = estimates[str(place)]
        trials.append(
            {"name": name, "outside": outside[name], "value": one.value, "low": one.low, "high": one.high,
             "discounted": worth[0], "discounted_error": worth[1], "truth": float(np.mean(returns[name])),
             "error": float(np.std(returns[name], ddof=1) / len(returns[name]) ** 0.5)}
        )  # fmt: skip
        print(trials[-1], flush=True)
    return report.stamp(options.device) | {
        "case": case.title, "env": case.env_id, "rows": len(case.data), "episodes": options.episodes,
        "updates": options.updates, "critics": options.critics, "hidden": options.hidden, "trials": trials,
        "selection": chosen, "played": played and played | {"play": options.play}, "agreement": scores(trials),
    }  # fmt: skip


def discounted_return(env_id: str, episodes: int, place: Path) -> tuple[float, float]:
    """Return the mean discounted return of a checkpoint's policy, and its standard error."""
    torch.set_num_threads(1)
    return truth(env_id, candidates(place)[0], episodes, defaults.SELECTION_GAMMA)


def scores(trials: list[Entry]) -> dict[str, float]:
    """Agreement of FQE's values with the true discounted returns, over all candidates except the optimist."""
    some = [one for one in trials if one["name"] != OPTIMIST]
    return agreement(np.array([one["discounted"] for one in some]), np.array([one["value"] for one in some]))


def regret(entry: Entry, name: str) -> float:
    """Loss of return from selecting `name`, as a fraction of the range of returns."""
    returns = {one["name"]: one["truth"] for one in entry["trials"]}
    return float((max(returns.values()) - returns[name]) / (max(returns.values()) - min(returns.values())))


def text_of(entry: Entry) -> str:
    chosen, played = entry["selection"], entry["played"]
    outcome = (
        f"It selects {chosen['trial']} (regret {regret(entry, chosen['trial']):.2f})."
        if chosen["trial"]
        else f"It abstains ({'; '.join(chosen['reasons'])}) and names {chosen['safe']}."
    )
    if played:
        outcome += (
            f" With {played['play']} episodes in the environment it selects {played['trial']} (regret "
            f"{regret(entry, played['trial']):.2f}) in {number(played['seconds'])} s."
        )
    anchors = "" if chosen["data"] is None else (
        f" The return of the data is {_interval(chosen['data'])}, the FQE value of their clone "
        f"{_interval(chosen['clone'])}."
    )  # fmt: skip
    words = (
        f"**{entry['env']}, {entry['case']}**: {entry['rows']:,} rows, {entry['critics']} critics with two "
        f"layers of {entry['hidden']}, {entry['updates']:,} updates, {number(chosen['seconds'])} s. "
        f"{outcome}{anchors} Spearman correlation of FQE's values with the true discounted ones, without the "
        f"optimist: {entry['agreement']['spearman']:.2f}."
    )
    rows = [
        [one["name"], f"{one['outside']:.1%}", _interval(one), f"{one['discounted']:,.1f}",
         f"{one['truth']:,.0f} ± {one['error']:,.0f}"]
        for one in sorted(entry["trials"], key=lambda one: -one["low"])
    ]  # fmt: skip
    return f"{words}\n\n{table(['candidate', 'outside', 'FQE', 'discounted', 'return'], rows)}"


def _interval(one: Entry) -> str:
    return f"{one['value']:,.1f} [{one['low']:,.1f}, {one['high']:,.1f}]"


def sections(entries: dict[str, Entry]) -> Sections:
    head = (
        "# Selecting a policy without the environment\n\nMeasured by `python -m benchmarks.evidence.choosing`: "
        f"`select --by fqe` (an eligible candidate has at most {MOST_OUTSIDE:.0%} of its actions outside the data; "
        f"discount {defaults.SELECTION_GAMMA}), then FQE of all candidates, eligible or not. The optimist is TD3 "
        "without a penalty for leaving the data. Regret is relative to the range of returns."
    )
    parts = [text_of(entry) for entry in entries.values()]
    return {("results/choosing", "choosing"): "\n\n".join([head, *parts, report.origins(entries.values())])}


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    results = Results("choosing", options.json)
    entry = measure(options)
    results.add({f"{report.machine(options.device)}/{entry['env']}/{entry['case']}": entry})
    print(text_of(entry))
    results.render(sections)


if __name__ == "__main__":
    main()
