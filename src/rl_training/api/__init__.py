"""The managed API, imported when it is first used; `__init__.pyi` tells type checkers what is in it."""

__all__ = [
    "AWAC",
    "BC",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "IQL",
    "REDQ",
    "RLPD",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "ManagedAlgorithm",
    "ReBRAC",
    "load",
]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rl_training.api import algorithms, managed

    globals()[name] = value = getattr(algorithms if hasattr(algorithms, name) else managed, name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
