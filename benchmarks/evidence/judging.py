"""Evaluate the last checkpoint of every finished run on episodes that were not used for any selection.

During training, all runs are evaluated on episodes of the same seed (`rl_training.seeding.EVALUATION_SEED`). Best
policies, early stopping and settings may have been selected on these episodes. This evaluation uses another seed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from rl_training.environments.playing import Evaluator
from rl_training.errors import RLTrainingError
from rl_training.experiment.checkpointing import find_checkpoint, list_checkpoints
from rl_training.memory import available_cores
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.seeding import EVALUATION_SEED
from rl_training.study.packing import LAST

SEED = EVALUATION_SEED + 1
EPISODES = 10
_MOST_PROCESSES = 16
Judged = dict[str, Any]
Answer = TypeVar("Answer")


def judge(place: Path, episodes: int = EPISODES) -> Judged:
    """Play the policy of a checkpoint; return the returns and lengths of its episodes, and its step."""
    checkpoint = open_checkpoint(place)
    loaded = load_policy(checkpoint)
    evaluator = Evaluator(loaded.config.replace(environments="local"), loaded.spaces, seed=SEED)
    try:
        played = evaluator.play(loaded.policy, episodes)
    finally:
        evaluator.close()
    metrics = evaluator.summary(played)
    returns = [round(value, 3) for value in played.returns.tolist()]
    found = {"step": checkpoint.step, "seed": SEED, "mean": metrics["eval_return_mean"], "returns": returns,
             "lengths": played.lengths.tolist()}  # fmt: skip
    return found | ({"success": metrics["eval_success_rate"]} if played.successes is not None else {})


def _judge_alone(place: Path, episodes: int) -> Judged | str:
    torch.set_num_threads(1)
    try:
        return judge(place, episodes)
    except RLTrainingError as error:
        return str(error)


def judged(
    places: Mapping[str, Path], processes: int | None = None, episodes: int = EPISODES
) -> Iterator[tuple[str, Judged]]:
    """Evaluate all policies, several at a time, and yield each result; failures are printed."""
    look = partial(_judge_alone, episodes=episodes)
    for name, answer in zip(places, for_each(look, list(places.values()), processes)):
        if isinstance(answer, str):
            print(f"{name}: cannot be judged: {answer}", flush=True)
        else:
            yield name, answer


def for_each(
    look: Callable[[Path], Answer], places: Sequence[Path], processes: int | None = None
) -> Iterator[Answer]:
    """Call a function for each checkpoint in `processes` processes (default: one per core); yields results in
    order."""
    count = min(processes or min(available_cores(), _MOST_PROCESSES), len(places))
    with ExitStack() as stack:
        if count > 1:
            pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
            yield from stack.enter_context(pool).map(look, places)
        else:
            yield from map(look, places)


def last_policy(home: Path) -> Path | None:
    """The newest checkpoint of a run, or the last policy that was packed with it; None if neither exists."""
    for parent in (home / "checkpoints", home / LAST):
        if list_checkpoints(parent):
            return find_checkpoint(parent)
    return None
