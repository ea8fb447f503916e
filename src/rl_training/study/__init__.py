"""Studies: many runs of one plan, on any number of machines that share a disk. The folders are the only state.

description   read, expand and check the YAML file
plan          configurations, trials and groups of a study; `planning` creates and extends it
claims        which worker owns a group
worker        claims groups and trains their trials; `worker_pool` and `ray_pool` start several
trials        whether a trial is done or failed; `status` of all of them
packing       a study as one file
study         `Study`, the Python interface
tuning        `Tuning`: a study to which a sampler adds trials; `tuning_file` reads its YAML file, `space` is the
              search space, `sampler` uses Optuna, `tuning_record` has the results
"""

from typing import TYPE_CHECKING

from rl_training.lazy import lazy

__all__ = ["Study"]

if TYPE_CHECKING:
    from rl_training.study.study import Study
else:
    __getattr__, __dir__ = lazy(__name__, {"Study": "rl_training.study.study"})
