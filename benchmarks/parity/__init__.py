"""Parity with reference implementations: losses, gradients and parameters of the same updates, in float64.

python -m benchmarks.parity --help

cases              which learner is compared with which reference
players            how each kind of reference is run
lockstep           two implementations on the same weights, batches and noise
references         REDQ's authors and CORL
normalizing        FlashSAC's authors and sb3-contrib's CrossQ
flash_sac_loop     a whole run of FlashSAC and the authors' agent in its own loop, step by step
sb3_agents         agents of Stable-Baselines3 and sb3-contrib, also for `tests/test_peer_parity.py`
by_hand            the papers' formulas in plain torch
d3rlpy_lockstep    d3rlpy, in its own Python environment
rebrac_lockstep    CORL's ReBRAC, in its own Python environment
cal_ql_lockstep    the authors' Cal-QL, in its own Python environment
fql_lockstep       the authors' FQL, in its own Python environment
"""
