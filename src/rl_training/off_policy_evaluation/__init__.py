"""Judging policies without an environment: which of them the data speak for.

    rl_training.ope(["runs/a", "runs/b"], dataset="logs.npz")

defaults     what the function and the commands do where nothing is said
policies     the candidates, and whether they fit the data
fitting      K policies × B bootstraps of FQE as one population
importance   weighted importance sampling and doubly robust estimates, for logs with probabilities
ope          `ope` and `OPEResult`: values, intervals, ranks
selecting    which trial of a study to take
"""
