"""Speed: one program for each table of `docs/performance.md`, and shared modules.

    python -m benchmarks.speed.PROGRAM --help

setup        options and the process of programs that measure updates
cases        the learners that updates are measured for
timing       blocks of updates, contenders in turn, medians, time spent inside functions
against      another checkout of this package, in turn with this one
updates      updates per second, with `depth`: check, scaling, floor, profile
training     environment steps per second;  steps: where the time of a step goes
stepping     environments alone;            online: two cores, evaluation, tensor environments; host_reads
minutes      until a return is reached, many environments, on a GPU
population   many members trained as one;   seeds: the same end to end;   rounding: how far members differ
overhead     guards and checkpoints;        startup: commands and imports
data_sizes   data sets of any size;         export: exported policies;    report_size: reports of many runs
picture      the figure and the tables of the README
"""
