"""Learning results of `docs/results.md` that have several seeds, from studies.

    python -m benchmarks.evidence run STUDY… --data DIR --minutes 9 --output-dir DIR
        Run the studies of these files, one after another, for this many minutes; then evaluate the finished runs
        and write NAME.json (scores and curves) and NAME.zip (the packed study) next to the studies' folders.
        NAME.json is written during training, so that a killed command leaves its curves. The same command
        continues where it stopped. `--from DIR` starts with the files of an earlier machine: finished runs are
        not repeated, unfinished ones start again.
    python -m benchmarks.evidence judge PACK_OR_FOLDER… --output-dir DIR
        Evaluate the last policies in packed studies (`--policies last`) or studies' folders on a CPU, at any time.
    python -m benchmarks.evidence render [NAME.json …]
        Copy results to `benchmarks/results/evidence/`, and write the tables and figures of `docs/` from them.

A whole table: `python -m benchmarks.evidence run benchmarks/studies/NAME.yaml --data DIR --render`.

working     run a study for some minutes
judging     evaluate the last checkpoint of every run on episodes that were not used for any choice
keeping     the results of a study that the repository stores
rendering   tables and figures; `published` has published results
"""
