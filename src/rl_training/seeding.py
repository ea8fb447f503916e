"""Every random stream of a run, derived from its seed: who draws from what stands here and nowhere else.

Streams are told apart by a constant of their own, so that none repeats another whatever the seed.
"""

from __future__ import annotations

import numpy as np

# What an episode is played for; part of its seed.
TRAINING, EVALUATION, COLLECTION = 1, 2, 3
# Evaluation seeds are the same for every run, so that runs are compared on the same episodes.
EVALUATION_SEED = 20_240_229
_LEARNER, _EXPLORATION, _RANDOM_DATA, _SAMPLING = 0x1EA, 0xAC7, 0xDA7A, 0x5A3
_HELD_OUT, _RESAMPLING, _JUDGE = 0x0DD, 0xB007, 0xFE1


def episode_seed(seed: int, purpose: int, index: int, episode: int) -> int:
    """A seed no other episode of any environment or purpose has."""
    return int(np.random.SeedSequence((seed, purpose, index, episode)).generate_state(1)[0])


def learner_seeds(seed: int) -> tuple[int, int]:
    """Of the initial networks, and of the generator that updates and minibatches are drawn from."""
    first, second = np.random.SeedSequence((seed, _LEARNER)).generate_state(2)
    return int(first), int(second)


def exploration(seed: int) -> np.random.Generator:
    """Random actions and exploration noise."""
    return np.random.default_rng(np.random.SeedSequence((seed, _EXPLORATION)))


def evaluation_sampling(column: int, number: int, seed: int = EVALUATION_SEED) -> np.random.Generator:
    """The noise of a stochastic policy in one evaluation episode, the same in every run."""
    return np.random.default_rng(np.random.SeedSequence((seed, _SAMPLING, column, number)))


def random_data(seed: int) -> np.random.Generator:
    """Actions of a data set collected at random."""
    return np.random.default_rng(np.random.SeedSequence((seed, _RANDOM_DATA)))


def held_out_episodes() -> np.random.Generator:
    """Which episodes of a data set are held out: the same in every run, so that none saw what all are judged on."""
    return np.random.default_rng(np.random.SeedSequence((_HELD_OUT,)))


def resampling(seed: int) -> np.random.Generator:
    """Which episodes the bootstraps of a judgement draw."""
    return np.random.default_rng(np.random.SeedSequence((seed, _RESAMPLING)))


def judge_seeds(seed: int, bootstrap: int) -> tuple[int, int]:
    """Of the networks that judge, and of the generator of their minibatches: the same for every policy, so that
    what separates two policies is not chance."""
    first, second = np.random.SeedSequence((seed, _JUDGE, bootstrap)).generate_state(2)
    return int(first), int(second)
