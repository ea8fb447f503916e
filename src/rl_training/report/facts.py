"""Facts about the compared runs: settings, seeds, budgets, versions, machines, data, time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rl_training.report.grouping import Groups, base_of, differences
from rl_training.report.reading import Run
from rl_training.report.run_files import finite
from rl_training.study.plan import described

_MOST_NAMED = 4


@dataclass(frozen=True)
class Facts:
    """Facts about the runs of a method on a task that count, as columns of a table; different values are listed."""

    task: str
    method: str
    seeds: str
    differs: str  # settings that differ from the base of the algorithm
    budget: str
    episodes: str  # per evaluation
    data: str
    versions: str
    device: str
    seconds: float | None  # median over runs
    updates_per_second: float | None  # median over runs
    together: int  # largest population that a run was trained in; its members share their seconds


def bases(groups: Groups) -> dict[str, dict[str, Any]]:
    """The most frequent value of every setting, by algorithm."""
    found = {}
    for algo in dict.fromkeys(groups.algos.values()):
        cells = [cell for cell in groups.cells.values() if groups.algos[cell.method] == algo]
        found[algo] = base_of(run for cell in cells for run in cell.seen)
    return found


def facts_of(groups: Groups) -> list[Facts]:
    """Facts for every method and task with runs that count."""
    known = bases(groups)
    found = []
    for task in groups.tasks:
        for method in groups.methods:
            runs = groups.cell(method, task).runs
            if runs:
                found.append(_facts(task, method, runs, known[groups.algos[method]]))
    return found


def _facts(task: str, method: str, runs: Sequence[Run], base: dict[str, Any]) -> Facts:
    settings = {id(run.settings): run.settings for run in runs}.values()
    seconds = [run.seconds for run in runs if run.seconds]
    rates = [rate for run in runs if (rate := _rate(run)) is not None]
    return Facts(
        task,
        method,
        seeds=ranges([run.seed for run in runs if run.seed is not None]),
        differs=_several(described(differences(one, base)) for one in settings),
        budget=_several(_count(run.settings.get("total_timesteps")) for run in runs),
        episodes=_several(_count(run.settings.get("eval_episodes")) for run in runs),
        data=_several(_data(run) for run in runs),
        versions=_several(_versions(run) for run in runs),
        device=_several(_device(run) for run in runs),
        seconds=median(seconds) if seconds else None,
        updates_per_second=median(rates) if rates else None,
        together=max(run.members for run in runs),
    )


def _several(texts: Iterable[str]) -> str:
    """The distinct texts, at most the first few."""
    found = [text for text in dict.fromkeys(texts) if text]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return "; ".join(found[:_MOST_NAMED]) + more


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _rate(run: Run) -> float | None:
    """Updates per second; None if it is unknown, as if the count includes updates that another run made."""
    updates = finite(run.metrics.get("update_count"))
    continued = run.settings.get("init_from") and run.metrics.get("pretrain_updates_done")
    if updates is None or not run.seconds or run.record.get("resumed_from") or continued:
        return None
    return updates / run.seconds


def _data(run: Run) -> str:
    if not run.dataset:
        return ""
    data = run.dataset
    used, rows = _count(data.get("rows")), _count(data.get("raw_rows", data.get("rows")))
    of = rows if used == rows else f"{used} of {rows}"
    return f"{data.get('name')} ({of} rows, fingerprint {data.get('raw_fingerprint', data.get('fingerprint'))})"


def _versions(run: Run) -> str:
    versions = run.record["versions"]
    named = ("rl_training", "torch", "gymnasium", "mujoco")
    return ", ".join(f"{name} {versions[name]}" for name in named if name in versions)


def _device(run: Run) -> str:
    host = run.record.get("host")
    return f"{run.record.get('device')}" + (f" on {host}" if host else "")


def ranges(seeds: Iterable[int]) -> str:
    """`0–4, 7` for 0, 1, 2, 3, 4 and 7."""
    parts: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if parts and parts[-1][-1] == seed - 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)
