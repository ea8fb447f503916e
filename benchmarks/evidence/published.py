"""Results that others published, beside which ours stand, with their source."""

from __future__ import annotations

from dataclasses import dataclass

SIMBA = "https://github.com/DAVIAN-Robotics/SimbaV2"
CROSSQ = "https://github.com/adityab/CrossQ"


@dataclass(frozen=True)
class Published:
    """A mean return that somebody published."""

    algo: str
    env_id: str
    steps: int
    mean: float
    std: float | None = None
    what: str = ""  # where it is not the algorithm alone


_SIMBA_MUJOCO = {
    # algorithm: (environment: mean returns at 100k, 300k and 1M steps; the deviation at the last)
    "sac": {
        "HalfCheetah-v4": ((6_156, 8_593, 11_321), 1_108),
        "Hopper-v4": ((1_103, 2_160, 2_787), 868),
    },
    "redq": {
        "HalfCheetah-v4": ((7_823, 9_657, 11_506), 2_086),
        "Hopper-v4": ((2_750, 3_066, 3_299), 918),
    },
}
STEPS = (100_000, 300_000, 1_000_000)
WHAT = {"redq": "REDQ, 20 updates a step"}

PUBLISHED: tuple[Published, ...] = tuple(
    Published(algo, env_id, steps, mean, std if steps == STEPS[-1] else None, WHAT.get(algo, ""))
    for algo, tasks in _SIMBA_MUJOCO.items()
    for env_id, (means, std) in tasks.items()
    for steps, mean in zip(STEPS, means)
)
SOURCE = (
    f"Published: mean returns of ten seeds in the results of [SimbaV2's repository]({SIMBA}), gym-MuJoCo v4; its "
    "evaluations, not ours. Its settings are not told there. The curves' points lie 16,666 steps apart, as do "
    f"those of [CrossQ's script]({CROSSQ}), which trains SAC and REDQ with a learning rate of 1e-3, where the "
    "papers have 3e-4, and makes updates from step 5,000 on."
)


def published(env_id: str | None, steps: float) -> list[Published]:
    """What is published of an environment after so many steps."""
    return [one for one in PUBLISHED if one.env_id == env_id and one.steps == steps]
