"""Other libraries, each in its own process, so that process settings of this package do not affect them.

    protocol     orders and answers as lines of JSON, for both sides
    checkouts    imports single files of a checkout as modules
    loops        scripts of CORL and Unifloral, paused between blocks of updates, and the agents of FlashSAC and FQL
    sb3, d3rlpy, corl, corl_jax, unifloral, leanrl, flashsac, fql
                 one module per library: functions for this package, and `main`, which runs in the library's process
    learn        `python -m benchmarks.peers.learn`: trains peers and evaluates them with this package's evaluator

`main` of d3rlpy, unifloral, corl_jax, fql and leanrl may run in a Python without this package, and that of
unifloral, corl_jax and fql without torch. These modules therefore import neither at module level.
"""
