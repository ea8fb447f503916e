"""Results that others published, shown next to ours, with their source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Published:
    """A published mean return and the standard deviation over its seeds."""

    algo: str
    env_id: str
    steps: int
    mean: float
    std: float
    seeds: int
    source: str
    what: str = ""  # set if the result is not for the algorithm's usual settings

    @property
    def text(self) -> str:
        return f"{self.mean:,.0f} ± {self.std:,.0f}"


class _Curves(NamedTuple):
    """Mean and standard deviation by environment, at each of `STEPS`."""

    seeds: int
    source: str
    at: dict[str, tuple[tuple[float, float], ...]]
    what: str = ""


STEPS = (100_000, 300_000)
_SIMBA = "[SimbaV2's repository](https://github.com/DAVIAN-Robotics/SimbaV2) (`results/baseline`, 86899c2)"
_CURVES = {
    "sac": _Curves(
        10,
        _SIMBA,
        {
            "HalfCheetah-v4": ((6_156, 738), (8_593, 1_016)),
            "Hopper-v4": ((1_103, 388), (2_160, 1_034)),
            "Walker2d-v4": ((690, 254), (2_470, 1_656)),
            "Ant-v4": ((747, 528), (3_532, 1_645)),
        },
    ),
    "redq": _Curves(
        10,
        _SIMBA,
        {
            "HalfCheetah-v4": ((7_823, 730), (9_657, 1_252)),
            "Hopper-v4": ((2_750, 972), (3_066, 860)),
            "Walker2d-v4": ((3_459, 1_110), (4_471, 724)),
            "Ant-v4": ((3_287, 1_200), (4_789, 1_323)),
        },
        "REDQ, 20 updates a step",
    ),
    "crossq": _Curves(
        10,
        _SIMBA,
        {
            "HalfCheetah-v4": ((8_112, 944), (10_012, 1_172)),
            "Hopper-v4": ((2_764, 823), (2_644, 934)),
            "Walker2d-v4": ((3_914, 1_729), (5_941, 509)),
            "Ant-v4": ((2_299, 1_347), (5_712, 761)),
        },
    ),
    "flash_sac": _Curves(
        5,
        "[its authors' repository](https://github.com/Holiday-Robot/FlashSAC) (`results/stateRL_cpusim`, 87edc90)",
        {
            "HalfCheetah-v4": ((9_815, 173), (11_481, 321)),
            "Hopper-v4": ((2_121, 1_176), (3_674, 387)),
            "Walker2d-v4": ((3_299, 1_740), (6_050, 1_135)),
            "Ant-v4": ((3_196, 1_715), (6_087, 989)),
        },
    ),
    "td3": _Curves(
        10,
        "[its author's repository](https://github.com/sfujim/TD3) (`learning_curves`)",
        {
            "HalfCheetah-v4": ((5_514, 554), (7_697, 727)),
            "Hopper-v4": ((660, 752), (2_410, 900)),
            "Walker2d-v4": ((770, 586), (3_336, 957)),
            "Ant-v4": ((586, 185), (1_954, 1_014)),
        },
        "TD3, v1 of the environments",
    ),
}
PUBLISHED: tuple[Published, ...] = tuple(
    Published(algo, env_id, steps, mean, std, curves.seeds, curves.source, curves.what)
    for algo, curves in _CURVES.items()
    for env_id, at in curves.at.items()
    for steps, (mean, std) in zip(STEPS, at)
)
NOTE = (
    "Published: the last evaluation up to this step, with the code and the evaluations of the authors. "
    f"SAC, REDQ and CrossQ are from {_SIMBA}, FlashSAC from {_CURVES['flash_sac'].source}, TD3 from "
    f"{_CURVES['td3'].source}, with the settings of its paper, in v1 of the environments. Published evaluations of "
    "SAC and REDQ are 16,666 steps apart, as in [CrossQ's script](https://github.com/adityab/CrossQ), which trains "
    "them with a learning rate of 1e-3 instead of the papers' 3e-4 and with updates from step 5,000 on. Their "
    "MuJoCo was older than 3.5, since which contacts in Hopper and Ant begin at twice the distance."
)


def published(env_id: str | None, steps: float) -> list[Published]:
    """Published results in an environment after this many steps."""
    return [one for one in PUBLISHED if one.env_id == env_id and one.steps == steps]
