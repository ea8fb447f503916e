"""Parity with references: losses, gradients and parameters of the same updates, compared in float64.

    python -m benchmarks.parity --help

cases              what is compared with which reference
players            how each kind of reference is run
lockstep           two implementations on the same weights, batches and noise
references         REDQ's authors and CORL;  by_hand: the papers' formulas in plain torch
d3rlpy_lockstep    d3rlpy, (rebrac_lockstep) CORL's ReBRAC and (cal_ql_lockstep) the authors' Cal-QL, each in
                   its own Python environment
"""
