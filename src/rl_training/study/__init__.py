"""Studies: many runs of a plan, on as many machines as share the disk; the folders are the only state.

description   the YAML file, strict, expanded and checked
plan          what the study consists of: configurations, trials, groups; `planning` makes and extends it
claims        which worker a group belongs to
worker        claims groups and trains their trials; `crew` starts several
trials        what became of a trial; `status` of all of them
packing       a study as one file
study         `Study`, for Python
tuning        `Tuning`: a study that grows by what a sampler asks for; `tuning_file` is what its author writes,
              `space` what is searched, `sampler` all there is of Optuna, `tuning_record` what is kept
"""

from typing import TYPE_CHECKING

__all__ = ["Study"]

if TYPE_CHECKING:
    from rl_training.study.study import Study
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rl_training.study.study import Study

        return Study
