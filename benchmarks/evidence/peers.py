"""Results of other libraries on the task of a run."""

from __future__ import annotations

import statistics

from benchmarks import report
from benchmarks.report import Entry, Results
from rl_training.report.grouping import is_offline
from rl_training.report.reading import Run

_PEERS = {"sb3": "Stable-Baselines3", "d3rlpy": "d3rlpy", "corl": "CORL"}


def peers_of(run: Run) -> dict[tuple[str, str], list[Entry]]:
    """Runs of other libraries in the same environment on data of the same fingerprint."""
    found: dict[tuple[str, str], list[Entry]] = {}
    data = run.dataset.get("fingerprint") if is_offline(run) else None
    for program in ("learning", "peers"):
        for entry in Results(program).load().values():
            library = _PEERS.get(entry.get("library", ""))
            same_data = entry.get("fingerprint") == data and (bool(data) or "file" not in entry)
            if library is not None and entry["env"] == run.env_id and same_data:
                found.setdefault((library, entry["algo"]), []).append(entry)
    return found


def best_peer(run: Run, step: float) -> str:
    """The peer with the best mean return by the same algorithm after as many steps; empty if there is none."""
    peers = {
        library: [entry["final"]["eval_return_mean"] for entry in entries if entry["steps"] == step]
        for (library, algo), entries in peers_of(run).items()
        if algo == run.algo
    }
    means = {library: statistics.fmean(values) for library, values in peers.items() if values}
    if not means:
        return ""
    best = max(means, key=lambda library: means[library])
    return f"{best} {report.spread(peers[best])} ({len(peers[best])} seeds)"
