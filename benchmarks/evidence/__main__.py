"""Command line of `benchmarks.evidence`; the docstring of the package documents it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import benchmarks.evidence
from benchmarks.evidence import keeping, working
from benchmarks.evidence.working import Order
from benchmarks.report import COMMIT
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.memory import human_bytes
from rl_training.study.packing import unpack_study
from rl_training.study.study import require_workers


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.evidence",
        description=benchmarks.evidence.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run studies, evaluate finished runs, pack them")
    run.add_argument("studies", nargs="+", type=Path, metavar="STUDY", help="study files, in order of priority")
    run.add_argument("--device", help="auto, cpu, cuda or cuda:N; overrides the studies")
    run.add_argument("--minutes", type=float, help="minutes of training, before evaluation and packing")
    run.add_argument("--workers", type=int, default=1, help="worker processes that train one study")
    run.add_argument(
        "--finish", action="store_true", help="stop the last groups if the first would not finish in --minutes"
    )
    run.add_argument("--commit", help=f"commit to record outside a git repository; or set {COMMIT}")
    run.add_argument("--policies", choices=("last", "best", "none"), default="last", help="policies to pack")
    run.add_argument("--render", action="store_true", help="add the results to the documentation")
    judge = commands.add_parser("judge", help="evaluate the last policies of packed studies or study folders")
    judge.add_argument("places", nargs="+", type=Path, metavar="PACK_OR_FOLDER")
    for command in (run, judge):
        command.add_argument(
            "--from", dest="earlier", type=Path, metavar="DIR", help="results of this command on another machine"
        )
        command.add_argument("--data", type=Path, metavar="DIR", help="folder with the data files of the studies")
        command.add_argument("--output-dir", type=Path, default=Path("runs/evidence"), metavar="DIR")
        command.add_argument("--processes", type=int, help="evaluation processes; default: one per core")
    render = commands.add_parser("render", help="add results, and write tables and figures")
    render.add_argument("results", nargs="*", type=Path, metavar="NAME.json")
    return parser.parse_args(given)


def run(options: argparse.Namespace) -> int:
    if options.minutes is not None and not options.minutes > 0:
        raise ConfigError(f"--minutes must be above 0, got {options.minutes:g}")
    if options.finish and options.minutes is None:
        raise ConfigError("--finish needs --minutes")
    require_workers(options.workers)
    order = Order(
        options.output_dir,
        options.data,
        options.device,
        options.minutes,
        options.earlier,
        options.commit,
        options.policies,
        options.workers,
        options.finish,
    )
    statuses = working.work_on(options.studies, order)
    folders = [order.output_dir / status.name for status in statuses]
    packs = [working.packed(folder, order.policies) for folder in folders]  # first: evaluations may be cut off
    for folder, packed in zip(folders, packs):
        file = _judged(folder, folder, folder.with_name(f"{folder.name}.json"), options)
        print(f"wrote {file} ({human_bytes(file.stat().st_size)}), {packed} ({human_bytes(packed.stat().st_size)})")
        if options.render:
            take(file)
    if options.render:
        _render()
    return 1 if any(status.failed for status in statuses) else 0


def _judged(place: Path, folder: Path, file: Path, options: argparse.Namespace) -> Path:
    """Collect the results of a study into `file` and evaluate the runs without an evaluation; `folder` has the
    policies."""
    kept = keeping.collect(place, working.files_of(file, options.earlier))
    if options.data is not None:
        keeping.note_data(kept, options.data)
    keeping.store(file, kept)
    keeping.judge_all(kept, keeping.homes_of(folder), options.processes, lambda: keeping.store(file, kept))
    return file


def judge(options: argparse.Namespace) -> int:
    for place in options.places:
        with tempfile.TemporaryDirectory() as made:
            if not place.exists():
                raise ConfigError(f"{place}: no such file or folder")
            folder = place if place.is_dir() else unpack_study(place, Path(made) / "study")
            name = keeping.collect(place)["study"]
            print(f"wrote {_judged(place, folder, options.output_dir / f'{name}.json', options)}")
    return 0


def take(file: Path) -> None:
    """Add results from another machine to those in the repository."""
    from benchmarks.evidence import rendering

    new = keeping.load(file)
    if new is None:
        raise ConfigError(f"{file}: no such file")
    target = rendering.KEPT / f"{new['study']}.json"
    keeping.store(target, keeping.merged(keeping.load(target), new))
    print(f"added {file} to {target}")


def render(options: argparse.Namespace) -> int:
    for file in options.results:
        take(file)
    _render()
    return 0


def _render() -> None:
    from benchmarks.evidence import rendering

    rendering.render()


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    try:
        return {"run": run, "judge": judge, "render": render}[options.command](options)
    except RLTrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
