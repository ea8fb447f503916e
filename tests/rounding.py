"""Checks of results that must be bit-identical on every CPU, as functions and as a program.

    python -m tests.rounding        prints each check and its result as JSON

Compared are: an operation for one learner and for a stack; a killed and an uninterrupted run, alone and in a
population; an episode evaluated with few and with many others.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from rl_training.algorithms.cql import conservative_gap
from rl_training.algorithms.dqn import huber_loss
from rl_training.algorithms.iql import expectile_loss
from rl_training.algorithms.losses import clipped_exponential, soft_policy_loss, squared_error, td_target
from rl_training.algorithms.tqc import quantile_huber_loss
from rl_training.models.mlp import _ACTIVATIONS
from rl_training.models.policies import log_tanh_slope, squashed_log_prob, squashed_sample
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime.populations import members_of, train_population
from rl_training.runtime.resume import resume_population
from rl_training.runtime.workflows import play_checkpoint
from tests.reliability.processes import Child
from tests.runs import QUIET, KillAt, differences, interrupted, resume, tiny, train, unlike

Operation = Callable[[Tensor], Tensor]
# Activations whose CPU kernels round the last elements of a tensor differently from the others: members with these
# equal their single runs up to rounding only.
SIZE_DEPENDENT = ("elu", "gelu", "gelu_tanh", "silu")
# Rows and columns on both sides of the width of a vector register (8 or 16 numbers), and odd ones.
SHAPES = [(1, 1), (7, 3), (15, 1), (24, 1), (16, 2), (33, 5), (100, 1), (100, 17)]


def activation(name: str) -> Operation:
    return lambda x: _ACTIVATIONS[name](x * 1.0)  # type: ignore[index]  # some work in place


OPERATIONS: dict[str, Operation] = {
    **{f"activation {name}": activation(name) for name in _ACTIVATIONS if name not in SIZE_DEPENDENT},
    "log_tanh_slope": log_tanh_slope,
    "squashed_sample": lambda x: squashed_sample(x, 0.1 * x, x.cos()).logprobs,
    "squashed_log_prob": lambda x: squashed_log_prob(x, 0.1 * x, x.sin()),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-6),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(-1),
    "std": lambda x: (x - x.mean()) / (x.square().mean().sqrt() + 1e-6),
    "weighted sum": lambda x: (x.unsqueeze(-1) * x.cos().unsqueeze(-1)).sum(-2),
    "huber_loss": lambda x: huber_loss(x, 0.5 * x.cos()),
    "conservative_gap": lambda x: conservative_gap(x.unsqueeze(0), x.cos(), x[:1].sin()),
    "quantile_huber_loss": lambda x: quantile_huber_loss(x.unsqueeze(0), x.cos()),
    "expectile_loss": lambda x: expectile_loss(x, 0.7),
    "squared_error": lambda x: squared_error(x, x[0].cos()),
    "soft_policy_loss": lambda x: soft_policy_loss(x, x.cos(), 0.2),
    "td_target": lambda x: td_target(x, (x > 1).to(x.dtype), x.cos(), 0.99),
    "clipped_exponential": lambda x: clipped_exponential(3.0 * x, 100.0),
}


def differing(operations: dict[str, Operation] = OPERATIONS, members: int = 3) -> list[str]:
    """Operations whose value or gradient for one learner differs from that in a stack."""
    found, generator = set(), torch.Generator().manual_seed(0)
    for name, operation in operations.items():

        def total(x: Tensor, operation: Operation = operation) -> Tensor:
            y = operation(x)
            return (y * torch.linspace(-1.0, 1.0, y.numel()).view(y.shape)).sum()

        for shape in SHAPES:
            x = torch.randn((members, *shape), generator=generator)
            for function in (operation, grad(total)):
                alone = torch.stack([function(own.clone()) for own in x])
                if not torch.equal(alone, torch.vmap(function)(x)):
                    found.add(name)
    return sorted(found)


def resumed_runs(folder: Path) -> list[str]:
    """Compare an interrupted and resumed run with an uninterrupted one."""
    config = tiny("sac", folder, total_timesteps=30, checkpoint_interval=12, eval_episodes=0)
    return differences(resume(interrupted(config, 24), [KillAt()]), train(config, [KillAt()]))


def members(folder: Path) -> list[str]:
    """Compare members of a population with single runs, up to rounding; the batch fills no vector register."""
    config = tiny("sac", folder, kwargs={"batch_size": 7}, total_timesteps=30, eval_episodes=0, seeds=[3, 0])
    configs = members_of(config)
    pairs = zip(train_population(configs, options=QUIET), configs)
    return [name for ours, config in pairs for name in unlike(ours, train(config))]


class Save(Callback):
    """Ends the process when the first member has saved a step and the others have not."""

    def on_checkpoint(self, session: Session, path: Path) -> None:
        if session.clock.ticks == 24 and session.config.seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Saved(Save):
    """The same without the end."""

    name = "Save"

    def on_checkpoint(self, session: Session, path: Path) -> None: ...


def resumed_populations(folder: Path) -> list[str]:
    """Compare a population that was killed between two saves with an uninterrupted one."""
    config = tiny("sac", folder, total_timesteps=30, checkpoint_interval=8, eval_episodes=0, seeds=[3, 0, 8])
    configs = members_of(config)
    child = Child(lambda: train_population(configs, callbacks=[Save()], options=QUIET), folder / "output.txt")
    assert child.wait() == -signal.SIGKILL, child.text()
    first = next(folder.glob("*__s3__*"))
    ours = resume_population(first, callbacks=[Saved()], quiet=True, warn=lambda text: None)
    theirs = train_population(configs, callbacks=[Saved()], options=QUIET)
    return [name for pair in zip(ours, theirs, strict=True) for name in differences(*pair)]


def episodes(folder: Path) -> list[str]:
    """Compare three evaluation episodes with the first three of ten."""
    config = tiny("sac", folder, kwargs={"hidden_sizes": [256, 256]}, total_timesteps=21, eval_episodes=0)
    path = train(config).run_dir
    few, many = (play_checkpoint(path, count)[1].returns for count in (3, 10))
    return [] if few.tolist() == many[:3].tolist() else ["episodes"]


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {"set": torch.backends.cpu.get_cpu_capability().lower(), "operations": differing()}
    for check in (resumed_runs, members, resumed_populations, episodes):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[check.__name__] = check(Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
