"""Plant known mistakes in the source and check that the tests catch them.

    python -m tools.mutations [--jobs N] [TEXT …]

Each mistake of `tools.mutation_table` is planted in a temporary copy of the repository, never in the working tree.
The default tests that must catch it (those that are not slow) run against the copy until the first one fails.
Before that, the same tests must pass in the copy without a mistake. TEXT selects mistakes whose name, kind or file
contains it. The exit status is 1 if a mistake survives, or if the tests could not be run.

This process imports the libraries once and forks for every mistake, so that a child imports only the package and
its tests. It therefore runs on Unix only.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from tools.mutation_table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
# Imported before the first fork; one that is not installed is left out, and so are the tests that need it.
LIBRARIES = (
    "pytest",
    "hypothesis.stateful",
    "numpy",
    "torch",
    "torch._dynamo",
    "pydantic",
    "yaml",
    "h5py",
    "safetensors.torch",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
)
_IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
)
PASSED, FAILED = 0, 1  # exit codes of pytest; any other means that the tests could not be run


class Verdict(NamedTuple):
    """How the tests of a mistake ended: pytest's exit code, its last lines, and the seconds it took."""

    code: int
    output: str
    seconds: float

    @property
    def failed_test(self) -> str:
        """The first test that failed."""
        found = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", self.output, re.MULTILINE)
        return found.group(1) if found else "?"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", help="only mistakes whose name, kind or file contains one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time; default: cores")
    return parser.parse_args()


def chosen(texts: Sequence[str]) -> list[Mutation]:
    """The mistakes that one of `texts` selects; all if none is given."""
    return [m for m in MUTATIONS if not texts or any(t in f"{m.name}\n{m.kind}\n{m.file}" for t in texts)]


def mutated(source: str, mutation: Mutation) -> str:
    """`source` with the mistake in it."""
    if (count := source.count(mutation.old)) != 1:
        raise ValueError(
            f"{mutation.file}: the text of {mutation.name!r} occurs {count} times, not once; "
            "change `old` and `new` in tools/mutation_table.py"
        )
    return source.replace(mutation.old, mutation.new)


@contextmanager
def planted(copy: Path, mutation: Mutation) -> Iterator[None]:
    """The mistake is in the copy of the repository until the block ends."""
    path = copy / "src" / "rl_training" / mutation.file
    source = path.read_text(encoding="utf-8")
    path.write_text(mutated(source, mutation), encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()  # otherwise Python may use it for a source of the same size and second
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")


def run_tests(copy: Path, tests: Sequence[str], output: Path, *, keep_bytecode: bool) -> NoReturn:
    """In a forked child, run `tests` of the copy and exit with pytest's exit code."""
    import pytest

    code = 70
    gc.freeze()  # exclude the parent's imports from garbage collection
    try:
        sys.stdout = sys.stderr = output.open("w", encoding="utf-8")
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stdout.fileno(), 2)
        os.chdir(copy)
        for name in [name for name in sys.modules if name == "tools" or name.startswith("tools.")]:
            del sys.modules[name]
        sys.path[:] = [str(copy / "src"), str(copy), *sys.path]
        sys.dont_write_bytecode = not keep_bytecode
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        os.environ["PYTHONDONTWRITEBYTECODE"] = "" if keep_bytecode else "1"
        options = ["-x", "-q", "--no-header", "--tb=line", "-rfE", "-p", "no:cacheprovider", "--timeout=120"]
        options.append(f"--basetemp={copy.with_suffix('.tmp')}")
        code = int(pytest.main([*options, *(f"tests/{name}" for name in tests)], plugins=[_Origin(copy)]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Origin:
    """A pytest plugin that stops a run whose package is not the one of the copy."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy

    def pytest_collection_finish(self) -> None:
        package = sys.modules.get("rl_training")
        if package is not None and not str(package.__file__).startswith(str(self.copy)):
            raise RuntimeError(f"the tests import {package.__file__}, which is not in {self.copy}")


class Pool:
    """Forked test runs, one at a time in each copy of the repository."""

    def __init__(self, copies: Sequence[Path]) -> None:
        self.free = list(copies)
        self.running: dict[int, Callable[[int], None]] = {}

    def submit(self, tests: Sequence[str], mutation: Mutation | None, report: Callable[[Verdict], None]) -> None:
        """Fork as soon as a copy is free; `report` gets the verdict when the child has ended."""
        if not self.free:
            self.wait()
        copy = self.free.pop()
        output, began = copy.with_suffix(".txt"), time.monotonic()
        restore = planted(copy, mutation) if mutation is not None else nullcontext()
        restore.__enter__()
        pid = os.fork()
        if pid == 0:
            run_tests(copy, tests, output, keep_bytecode=mutation is None)

        def finish(code: int) -> None:
            restore.__exit__(None, None, None)
            self.free.append(copy)
            tail = output.read_text(encoding="utf-8", errors="replace")[-4000:]
            report(Verdict(code, tail, time.monotonic() - began))

        self.running[pid] = finish

    def wait(self) -> None:
        """Wait until one child has ended."""
        pid, status = os.wait()
        self.running.pop(pid)(os.waitstatus_to_exitcode(status))

    def wait_for_all(self) -> None:
        while self.running:
            self.wait()


def check_unchanged(pool: Pool, mutations: Sequence[Mutation]) -> list[str]:
    """Run the tests without a mistake; return an error text for each file that fails."""
    wrong: list[str] = []

    def report(name: str) -> Callable[[Verdict], None]:
        def on_verdict(verdict: Verdict) -> None:
            if verdict.code != PASSED:
                wrong.append(f"tests/{name} does not pass without a mistake:\n{verdict.output}")

        return on_verdict

    for name in sorted({name for mutation in mutations for name in mutation.tests}):
        pool.submit([name], None, report(name))
    pool.wait_for_all()
    return wrong


def check_mutations(pool: Pool, mutations: Sequence[Mutation]) -> list[Mutation]:
    """Plant the mistakes one after another, print each verdict, and return the mistakes that were not caught."""
    survivors: list[Mutation] = []

    def report(mutation: Mutation) -> Callable[[Verdict], None]:
        def on_verdict(verdict: Verdict) -> None:
            outcome = {PASSED: "SURVIVED", FAILED: "caught"}.get(verdict.code, f"NOT RUN ({verdict.code})")
            by = f" by {verdict.failed_test}" if verdict.code == FAILED else ""
            print(f"{outcome:9} {verdict.seconds:5.1f} s  {mutation.kind}: {mutation.name}{by}", flush=True)
            if verdict.code != FAILED:
                survivors.append(mutation)
            if verdict.code not in (PASSED, FAILED):
                print(verdict.output, flush=True)

        return on_verdict

    for mutation in mutations:
        pool.submit(mutation.tests, mutation, report(mutation))
    pool.wait_for_all()
    return survivors


def _ignored(folder: str, names: list[str]) -> set[str]:
    """Files that are not copied; `runs` is output in the root, but a package in the source."""
    return _IGNORED(folder, names) | ({"runs"} if Path(folder) == ROOT else set())


def make_copies(folder: Path, count: int) -> list[Path]:
    """Copies of the repository as it is now, uncommitted changes included."""
    copies = [folder / f"copy-{i}" for i in range(count)]
    for copy in copies:
        shutil.copytree(ROOT, copy, symlinks=True, ignore=_ignored)
    return copies


def main() -> None:
    options = arguments()
    mutations = chosen(options.text)
    if not mutations:
        raise SystemExit(f"no mistake matches {' '.join(options.text)}")
    for mutation in mutations:  # before any test runs: the table must fit the source
        mutated((ROOT / "src" / "rl_training" / mutation.file).read_text(encoding="utf-8"), mutation)
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        pool = Pool(make_copies(Path(folder).resolve(), max(1, min(options.jobs, len(mutations)))))
        if wrong := check_unchanged(pool, mutations):
            raise SystemExit("\n\n".join(wrong))
        print(f"the tests pass without a mistake ({time.monotonic() - began:.0f} s)", flush=True)
        survivors = check_mutations(pool, mutations)
    caught, seconds = len(mutations) - len(survivors), time.monotonic() - began
    print(f"\n{caught} of {len(mutations)} mistakes caught in {seconds:.0f} s")
    for mutation in survivors:
        print(f"| {mutation.kind} | {mutation.name} | {mutation.file} | {', '.join(mutation.tests)} |")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
