"""The offline algorithms on files of transitions: returns and D4RL-normalised scores beside the data's own.

    python -m benchmarks.offline --data DIR [--files pendulum-replay hopper-medium+hopper-expert] [--algo …]
                                 [--updates 20000] [--seeds 0 1 2] [--workers W] [--device cuda]
                                 [--peer-python PATH]     d3rlpy's CRR, AWAC and IQL on the same rows
                                 [--corl DIR]             CORL's TD3+BC and IQL on the same rows, out of a checkout

A file is `DIR/<name>.npz`; names joined with `+` are mixed in proportion to their rows. Settings come from the
packaged config `<algo>/<name>` (a mixture of medium and expert is `…-medium-expert`) or from `--config`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.learning import comparison, finals, verdict
from benchmarks.loops import libraries, published_settings
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import RunSpec, algorithm_changes, configure, data_returns, dataset_settings, perform_all
from rl_training.data.scores import NOT_COMPARABLE, normalized_score
from rl_training.environments.making import spaces_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

ENVIRONMENTS = {"pendulum": "Pendulum-v1", "hopper": "Hopper-v5", "halfcheetah": "HalfCheetah-v5"}
# Return to reach, and the updates within which.
THRESHOLDS = {"pendulum-replay": (-200.0, 20_000)}
PEER_ALGORITHMS = {"corl": ("td3_bc", "iql"), "d3rlpy": ("crr", "awac", "iql")}
PEER_NAMES = {"corl": "CORL", "d3rlpy": "d3rlpy"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the npz files")
    parser.add_argument("--files", nargs="+", default=["pendulum-replay"])
    parser.add_argument("--algo", nargs="+")
    parser.add_argument("--config", help="path or <algo>/<name>; {algo} stands for each algorithm")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of every config")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads of each run; 1 if there are several workers")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--acceleration", default="auto")
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--minutes", type=float, help="stop runs and judge them after this time")
    parser.add_argument("--peer-python", help="a Python with d3rlpy installed")
    parser.add_argument("--corl", type=Path, metavar="DIR", help="a checkout of CORL")
    parser.add_argument("--peers-only", action="store_true")
    parser.add_argument("--json", type=Path, help="keep results here and leave the documentation alone")
    options = parser.parse_args()
    libraries(options.corl, None, None)  # a folder that is none is said before anything runs
    return options


def paths(data: Path, name: str) -> list[Path]:
    found = [data / f"{part}.npz" for part in name.split("+")]
    for path in found:
        if not path.is_file():
            raise SystemExit(f"{path}: no such file; --data is the folder, --files the names without .npz")
    return found


def environment(name: str) -> str:
    return ENVIRONMENTS[name.partition("-")[0]]


def config_name(algo: str, name: str) -> str:
    """`hopper-medium+hopper-expert` is the packaged `hopper-medium-expert`."""
    task = name.partition("-")[0]
    return f"{algo}/{name.replace(f'+{task}', '')}"


def configured(options: argparse.Namespace, algo: str, name: str, seed: int) -> tuple[TrainConfig, str]:
    """The config of one run and where its settings come from."""
    source = options.config.format(algo=algo) if options.config else config_name(algo, name)
    config = configure(
        source,
        algo,
        options.set,
        env_id=environment(name),
        seed=seed,
        total_timesteps=options.updates,
        device=options.device,
        acceleration=options.acceleration,
        checkpoint_interval=10**9,
        eval_episodes=0,
        algo_kwargs=dataset_settings(paths(options.data, name)),
    )
    return config, source


def contenders(options: argparse.Namespace, algo: str) -> list[str]:
    """The libraries that are asked for and have the algorithm."""
    given = {"corl": options.corl, "d3rlpy": options.peer_python}
    peers = [library for library, algorithms in PEER_ALGORITHMS.items() if given[library] and algo in algorithms]
    return peers + ([] if options.peers_only else ["rl_training"])


def peer_settings(options: argparse.Namespace, library: str, algo: str, name: str) -> tuple[dict[str, Any], str]:
    """What a peer is told beyond what every library is, and what that is called: CORL has settings of its own for a
    data set."""
    if library == "corl":
        task, _, quality = config_name(algo, name).partition("/")[2].partition("-")
        published = published_settings(options.corl, algo, task, quality)
        if published is not None:
            return published, f"CORL's {quality} settings"
    return {}, f"{PEER_NAMES[library]}'s defaults"


def job_of(options: argparse.Namespace, library: str, algo: str, name: str, seed: int, own: list[float]) -> RunSpec:
    """One run; `own` are the returns of the data's episodes."""
    config, source = configured(options, algo, name, seed)
    told: dict[str, Any] = {}
    if library != "rl_training":
        told, source = peer_settings(options, library, algo, name)
    changed = "".join(f" {change}" for change in algorithm_changes(options.set))
    return RunSpec(
        key=f"{name}/{options.updates}/{library} {algo}{changed}/{seed}",
        config=config.to_dict(),
        library=library,
        episodes=options.episodes,
        deadline=time.time() + 60 * options.minutes if options.minutes else None,
        labels={
            "kind": "offline",
            "file": name,
            "config": source,
            "overrides": options.set,
            "data_return": statistics.fmean(own),
            "data_episodes": len(own),
        },
        peer_python=options.peer_python,
        peer_settings=told,
        peer_checkout=options.corl,
    )


def jobs(options: argparse.Namespace) -> Iterable[RunSpec]:
    algorithms = options.algo or [s.name for s in list_algorithm_specs() if s.regime == "offline"]
    for name in options.files:
        spaces = spaces_of(configured(options, algorithms[0], name, 0)[0])
        own = data_returns(paths(options.data, name), spaces)
        for seed in options.seeds:
            for algo in algorithms:
                for library in contenders(options, algo):
                    yield job_of(options, library, algo, name, seed, own)


def contender(entry: Entry) -> str:
    name = get_algorithm_spec(entry["algo"]).learner.__name__.replace("TD3BC", "TD3+BC")
    name = ", ".join([name, *algorithm_changes(entry["overrides"])])
    library = PEER_NAMES.get(entry["library"])
    return f"{library} {name}" if library else name


def file_text(name: str, entries: list[Entry]) -> str:
    """One file: a row per algorithm, then what the table says."""
    runs_of: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: (e["library"], e["algo"], e["seed"])):
        runs_of.setdefault(contender(entry), []).append(entry)
    env, wanted = environment(name), THRESHOLDS.get(name)
    own = entries[0]["data_return"]
    clone = statistics.fmean(finals(runs_of["BC"])) if "BC" in runs_of else None

    def score(value: float) -> str:
        found = normalized_score(env, value)
        return "–" if found is None else f"{found:.1f}"

    data = f"the data itself, {entries[0]['data_episodes']} episodes"
    rows = [[data, "–", "–", "–", "–", f"{own:.0f}", score(own), "–"]]
    for label, runs in runs_of.items():
        values = finals(runs)
        mean = statistics.fmean(values)
        verdicts = []
        if wanted is not None and label != "BC" and runs[0]["library"] == "rl_training":
            verdicts.append(f"≥ {wanted[0]:g}: {verdict(values, wanted[0], runs, wanted[1])}")
        if clone is not None and label != "BC":
            few = ", one seed each" if len(values) == len(runs_of["BC"]) == 1 else ""
            verdicts.append(("above BC" if mean > clone else "not above BC") + few)
        settings = " ".join([f"`{runs[0]['config']}`", *runs[0]["overrides"]])
        updates, seeds = min(r["updates"] for r in runs), " ".join(str(r["seed"]) for r in runs)
        rows.append([label, settings, f"{updates:,}", seeds, report.returns(values), report.spread(values),
                     score(mean), ", ".join(verdicts) or "–"])  # fmt: skip
    header = ["", "settings", "updates", "seeds", "returns", "mean ± std", "normalised", ""]
    parts = [f"### {name} ({env}), {entries[0]['total_timesteps']:,} updates\n", table(header, rows)]
    for label, runs in runs_of.items():
        for library in PEER_NAMES.values():
            peer = runs_of.get(f"{library} {label}")
            if peer:
                parts.append(f"\n{label} beside {library}: {comparison(finals(runs), finals(peer))}")
    if normalized_score(env, 0.0) is not None:
        parts.append(f"\nScores are {NOT_COMPARABLE}.")
    return "\n".join(parts)


def sections(entries: dict[str, Entry]) -> Sections:
    found: Sections = {}
    runs = [e for e in entries.values() if e["kind"] == "offline"]
    if runs:
        tables = sorted({(e["file"], e["total_timesteps"]) for e in runs})
        texts = [file_text(f, [e for e in runs if (e["file"], e["total_timesteps"]) == (f, n)]) for f, n in tables]
        note = (
            f"Written by `python -m benchmarks.offline`; last checkpoint, {runs[0]['episodes']} episodes on the "
            "same seeds for every run. Files are told by their episodes: a study above may have a longer one "
            "of the same name."
        )
        said = report.checkouts_said(e for e in runs if "how" in e)
        parts = ["## Offline algorithms", note, *texts, *(line.strip() for line in said), report.origins(runs)]
        found["results", "offline"] = "\n\n".join(parts)
    return found


def main() -> None:
    options = arguments()
    results = Results("offline", options.json)
    for job, entry in perform_all(list(jobs(options)), options.workers, options.threads):
        results.add({job.key: entry})
    for text in sections(results.load()).values():
        print(f"\n{text}")
    results.render(sections)


if __name__ == "__main__":
    main()
