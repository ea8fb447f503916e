"""Learning results over several seeds, for `docs/results.md`, from studies.

    python -m benchmarks.evidence run STUDY… --data DIR --minutes 9 --output-dir DIR
        Run the given studies one after another for this many minutes. Then evaluate the finished runs and write
        NAME.json (scores and curves) and NAME.zip (the packed study) next to each study's folder. NAME.json is
        updated during training, so a killed command keeps its curves. Repeat the command to continue. `--from DIR`
        starts from the files of another machine: finished runs are reused, unfinished ones start again.
    python -m benchmarks.evidence judge PACK_OR_FOLDER… --output-dir DIR
        Evaluate the last policies of packed studies (`--policies last`) or study folders on a CPU.
    python -m benchmarks.evidence render [NAME.json …]
        Copy results to `benchmarks/results/evidence/` and write the tables and figures of `docs/` from them.

To produce a whole table: `python -m benchmarks.evidence run benchmarks/studies/NAME.yaml --data DIR --render`.

    working     runs a study for a number of minutes
    judging     evaluates the last checkpoint of every run on new episodes
    keeping     reads and writes the results of a study that the repository stores
    rendering   writes tables and figures; `published` contains published results
"""
