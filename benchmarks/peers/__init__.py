"""Other libraries, each in a process of its own: what this package sets for its process is not passed on to them.

protocol     orders and answers, one line of JSON each; both ends
checkouts    single files of a checkout as modules
loops        scripts of CORL and Unifloral, paused between blocks of updates, and the agents of FlashSAC and FQL
sb3, d3rlpy, corl, corl_jax, unifloral, leanrl, flashsac, fql
             one module per library: what this package calls, and `main`, which runs in the library's process
learn        `python -m benchmarks.peers.learn`: peers trained to the end and evaluated by this package's evaluator

`main` of d3rlpy, unifloral, corl_jax, fql and leanrl may run in a Python without this package, and that of
unifloral, corl_jax and fql without torch: these modules import neither at their head.
"""
