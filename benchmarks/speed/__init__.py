"""Speed benchmarks: one program for each table of `docs/performance.md`, and shared modules.

    python -m benchmarks.speed.PROGRAM --help

Programs:

    updates      updates per second; its module `depth` adds --check, --scaling, --floor and --profile
    training     environment steps per second of a whole run
    steps        time of each part of an environment step
    stepping     environment steps per second without a policy
    online       online training on two cores, evaluation, and tensor environments
    minutes      minutes until a return is reached, with many environments on a GPU
    population   updates per second of many members trained together
    seeds        training time of many seeds, end to end
    rounding     numerical difference between members of a population and single runs
    overhead     cost of guards and checkpoints
    startup      start-up time of commands, imports and processes
    data_sizes   cost of the size of a data set
    export       exported policies
    report_size  reports of many runs
    picture      the figure and the tables of the README

Shared modules:

    setup        options and process settings of programs that measure updates
    cases        the learners whose updates are measured
    timing       timed blocks of updates, alternating contenders, time inside functions
    against      comparison with another checkout of this package
    host_reads   counts host-device synchronisation
    summary      the short tables of docs/performance.md
"""
