"""D4RL's reference returns: 0 is a random policy, 100 an expert.

The numbers are those of `d4rl/infos.py` and belong to the v2 MuJoCo tasks (v0 and v1 of Adroit, Kitchen and
the mazes). Later versions of an environment have other rewards: scores on a v4 or v5 task can be compared with each
other, but not with published v2 tables.
"""

from __future__ import annotations

import re

NOT_COMPARABLE = "normalised with D4RL's v2 references; not comparable with published v2 tables"

_REFERENCES = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "maze2d-umaze-dense": (68.537689, 193.66285642),
    "maze2d-medium-dense": (44.264742, 297.45525478),
    "maze2d-large-dense": (30.569041, 303.48573827),
}

# Names of Gymnasium and Gymnasium-Robotics without their version, in lower case.
_TASKS = (
    (re.compile(r"(halfcheetah|hopper|walker2d|ant)"), "{0}"),
    (re.compile(r"adroithand(pen|hammer|door|relocate)"), "{0}"),
    (re.compile(r"(pen|hammer|door|relocate)"), "{0}"),
    (re.compile(r"(antmaze)_.*"), "{0}"),
    (re.compile(r"franka(kitchen)"), "{0}"),
    (re.compile(r"pointmaze_(umaze|medium|large)"), "maze2d-{0}"),
    (re.compile(r"pointmaze_(umaze|medium|large)dense"), "maze2d-{0}-dense"),
)


def reference_returns(env_id: str) -> tuple[float, float] | None:
    """Returns of the random and of the expert policy, or None if D4RL has none.

    An id has a version; a name without one may be a user's class.
    """
    name, _, version = env_id.lower().rpartition("-v")
    for pattern, task in _TASKS if version.isdecimal() else ():
        match = pattern.fullmatch(name)
        if match:
            return _REFERENCES[task.format(*match.groups())]
    return None


def normalized_score(env_id: str, mean_return: float) -> float | None:
    """`100 * (return - random) / (expert - random)`, or None for a task without references."""
    references = reference_returns(env_id)
    if references is None:
        return None
    low, high = references
    return 100.0 * (mean_return - low) / (high - low)
