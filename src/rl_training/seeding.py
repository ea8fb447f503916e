"""All random streams of a run, derived from its seed.

Each stream has its own constant, so that no two streams coincide for any seed.
"""

from __future__ import annotations

import numpy as np

# Purpose of an episode; part of its seed.
TRAINING, EVALUATION, COLLECTION = 1, 2, 3
# The same for every run, so that runs are compared on the same episodes.
EVALUATION_SEED = 20_240_229
_LEARNER, _EXPLORATION, _RANDOM_DATA, _SAMPLING = 0x1EA, 0xAC7, 0xDA7A, 0x5A3
_HELD_OUT, _RESAMPLING, _FQE = 0x0DD, 0xB007, 0xFE1


def episode_seed(seed: int, purpose: int, index: int, episode: int) -> int:
    """The seed of one episode, different for every purpose, environment `index` and `episode` number."""
    return int(np.random.SeedSequence((seed, purpose, index, episode)).generate_state(1)[0])


def learner_seeds(seed: int) -> tuple[int, int]:
    """Seeds of the initial networks and of the generator for updates and minibatches."""
    first, second = np.random.SeedSequence((seed, _LEARNER)).generate_state(2)
    return int(first), int(second)


def exploration(seed: int) -> np.random.Generator:
    """Generator of random actions and exploration noise."""
    return np.random.default_rng(np.random.SeedSequence((seed, _EXPLORATION)))


def device_exploration(seed: int) -> int:
    """Seed of the same on the device of the environments."""
    return int(np.random.SeedSequence((seed, _EXPLORATION)).generate_state(1)[0])


def evaluation_sampling(column: int, number: int, seed: int = EVALUATION_SEED) -> np.random.Generator:
    """Generator of a stochastic policy's noise in one evaluation episode, the same in every run."""
    return np.random.default_rng(np.random.SeedSequence((seed, _SAMPLING, column, number)))


def random_data(seed: int) -> np.random.Generator:
    """Generator of the actions of a data set collected at random."""
    return np.random.default_rng(np.random.SeedSequence((seed, _RANDOM_DATA)))


def held_out_episodes() -> np.random.Generator:
    """Generator that chooses held-out episodes: the same in every run, so that no run has trained on them."""
    return np.random.default_rng(np.random.SeedSequence((_HELD_OUT,)))


def resampling(seed: int) -> np.random.Generator:
    """Generator that chooses the episodes of the bootstrap resamples of an off-policy evaluation."""
    return np.random.default_rng(np.random.SeedSequence((seed, _RESAMPLING)))


def fqe_seeds(seed: int, bootstrap: int) -> tuple[int, int]:
    """Seeds of the FQE networks and of the generator for their minibatches.

    They are the same for every policy, so that estimates of two policies do not differ by chance.
    """
    first, second = np.random.SeedSequence((seed, _FQE, bootstrap)).generate_state(2)
    return int(first), int(second)
