"""Off-policy evaluation (OPE): rank policies by logged data, without an environment.

    rl_training.ope(["runs/a", "runs/b"], dataset="logs.npz")

defaults     defaults of `ope` and of the commands
policies     load the candidate policies and check that they fit the data
fitting      K policies × B bootstraps of FQE as one population
importance   weighted importance sampling and doubly robust estimates, for logs with probabilities
evaluation   `ope` and `OPEResult`: values, intervals, ranks
support      share of states in which a policy acts outside the data
choosing     choose a policy by data or by a few episodes, or abstain
selecting    choose a trial of a study
"""
