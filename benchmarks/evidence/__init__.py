"""What was learned, made from studies: every learning result of `docs/results.md` that has several seeds.

    python -m benchmarks.evidence run STUDY… --data DIR --minutes 9 --output-dir DIR
        Work on the studies of these files, one after the other, for so many minutes; then judge what is done and
        leave NAME.json (scores and curves, small) and NAME.zip (the packed study) beside the studies' folders.
        NAME.json is written while the study is trained, so that a command that is killed leaves its curves. The
        same command continues where it stopped. `--from DIR` begins with the files that an earlier machine left:
        what was done there is not done again, what was under way starts from its beginning.
    python -m benchmarks.evidence judge PACK_OR_FOLDER… --output-dir DIR
        Judge the last policies in packed studies (`--policies last`) or studies' folders, on a CPU, any time later.
    python -m benchmarks.evidence render [NAME.json …]
        Take results into `benchmarks/results/evidence/`, and write the tables and figures of `docs/` from there.

One table from nothing: `python -m benchmarks.evidence run benchmarks/studies/NAME.yaml --data DIR --render`.

working     a study for some minutes
judging     the last checkpoint of every run, on episodes that nothing was chosen by
keeping     what is kept of a study in the repository
rendering   tables and figures; `published` are the references beside ours
"""
