"""Results of other libraries on the task of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.evidence.naming import name_of
from benchmarks.report import Entry, Results
from rl_training.display.text import number
from rl_training.report.facts import ranges
from rl_training.report.reading import Run
from rl_training.report.tasks import is_offline

_PEERS = {"sb3": "Stable-Baselines3", "d3rlpy": "d3rlpy", "corl": "CORL", "flashsac": "the authors'"}
_VERSIONS = {"sb3": "stable_baselines3", "d3rlpy": "version", "corl": "checkout", "flashsac": "checkout"}


def peers_of(study: str, run: Run) -> dict[tuple[str, str], list[Entry]]:
    """Runs of other libraries with the settings of a study, by library and algorithm, on the task of its `run`.

    The task is the environment; offline, it is the same rows, as recorded by the run or as stored in the files.
    """
    found: dict[tuple[str, str], list[Entry]] = {}
    data = {run.dataset.get(name) for name in ("fingerprint", "raw_fingerprint")} - {None}
    for entry in Results("peers").load().values():
        library, rows = _PEERS[entry["library"]], entry.get("fingerprint")
        same_data = rows in data if is_offline(run) else rows is None
        if entry["study"] == study and entry["env"] == run.env_id and same_data:
            found.setdefault((library, entry["algo"]), []).append(entry)
    return found


def spread(values: Sequence[float]) -> str:
    """Mean and, for several values, their standard deviation, formatted like our own returns."""
    mean = number(statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {number(statistics.stdev(values))}"


def best_peer(study: str, run: Run, step: float) -> str:
    """The peer with the highest mean return for the same algorithm and number of steps; empty if there is none."""
    peers = {
        library: [entry["final"]["eval_return_mean"] for entry in entries if entry["steps"] == step]
        for (library, algo), entries in peers_of(study, run).items()
        if algo == run.algo
    }
    means = {library: statistics.fmean(values) for library, values in peers.items() if values}
    if not means:
        return ""
    best = max(means, key=lambda library: means[library])
    return f"{best} {spread(peers[best])} ({len(peers[best])} seeds)"


def peer_rows(study: str, run: Run) -> Iterator[tuple[str, str, str, str]]:
    """Name, seeds, steps and return of each peer on the task of a run."""
    for (library, algo), entries in peers_of(study, run).items():
        name = f"{library} {name_of(algo)}, {entries[0]['episodes']} episodes"
        steps = " / ".join(sorted({f"{entry['steps']:,}" for entry in entries}))
        values = [entry["final"]["eval_return_mean"] for entry in entries]
        yield name, ranges(entry["seed"] for entry in entries), steps, spread(values)


def settings_of_peers(study: str, run: Run) -> list[str]:
    """A paragraph on the settings of a study's peers on the task of a run; empty if there are none."""
    named: dict[tuple[str, str, str], dict[str, None]] = {}
    for (library, algo), entries in peers_of(study, run).items():
        for entry in entries:
            versions = entry.get("versions", {}) | entry.get("peer_versions", {})
            version = versions.get(_VERSIONS[entry["library"]], "")
            named.setdefault((library, version, entry.get("settings", "ours")), {})[name_of(algo)] = None
    parts = [f"{library} {' and '.join(algos)} ({version}): {settings}"
             for (library, version, settings), algos in sorted(named.items())]  # fmt: skip
    words = "Other libraries are trained with our networks, batch size and number of updates. Their other settings:"
    how = "`python -m benchmarks.peers.learn --help` describes how to train them."
    return [f"{words} {'; '.join(parts)}. {how}"] if parts else []
