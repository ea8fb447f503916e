"""Compare our updates with those of references: losses, gradients and parameters of 20 updates in float64.

    python -m benchmarks.parity --redq CHECKOUT --corl CHECKOUT --cal-ql CHECKOUT --fql CHECKOUT
                                --flash-sac CHECKOUT --d3rlpy-python PYTHON --jax-python PYTHON
                                [--algo edac …] [--json FILE]

Both sides start from the same weights, batches and noise. The deliberate differences that our docstrings state are
removed from the reference. Then every setting that a case lists is changed by 1 % on our side, which the comparison
must detect. A case is skipped if its reference is not given; references "by hand" (`benchmarks.parity.by_hand`) are
always available, and so is sb3-contrib if it is installed. The exit status is 1 if a difference exceeds the bound
or a changed setting is not detected. `tests/test_peer_parity.py` compares more with Stable-Baselines3 and
sb3-contrib.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.parity.cases import CASES, Case
from benchmarks.parity.lockstep import UPDATES, Distance, distance, float64, noises, play, random_batches
from benchmarks.report import Entry, Results, Sections, table
from rl_training import algorithms

# Largest difference allowed for rounding, and smallest difference required for a change of 1 %.
BOUND, MISTAKE = 1e-10, 1e-5


def place(text: str) -> Path:
    """Absolute path, for processes that start elsewhere; links are not resolved, because they identify an
    environment."""
    return Path(text).expanduser().absolute()


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--redq", type=place, help="a checkout of github.com/watchernyu/REDQ")
    parser.add_argument("--corl", type=place, help="a checkout of github.com/tinkoff-ai/CORL")
    parser.add_argument("--cal-ql", type=place, help="a checkout of github.com/nakamotoo/Cal-QL")
    parser.add_argument("--fql", type=place, help="a checkout of github.com/seohongpark/fql")
    parser.add_argument("--flash-sac", type=place, help="a checkout of github.com/Holiday-Robot/FlashSAC")
    parser.add_argument("--d3rlpy-python", type=place, help="a Python with d3rlpy installed")
    parser.add_argument("--jax-python", type=place, help="a Python with jax, flax, optax, chex and distrax")
    parser.add_argument("--algo", nargs="+", default=[], help="algorithms to compare; default: all")
    return parser.parse_args()


def differences(case: Case, options: argparse.Namespace) -> tuple[Distance, dict[str, float], dict[str, str]]:
    """Difference of ours from the reference, the same with each mistake, and the versions of the reference."""
    with float64():
        batches = random_batches(discrete=case.discrete, extras=case.extras)
        learner = case.build()
        networks = learner.state_dict()["networks"]
        theirs, versions = case.play(options, (learner.config, networks, batches, noises(case.draw)))
        found = distance(play(learner, batches), theirs)
        seen = {}
        for setting in case.mistakes:
            wrong = case.build(**{setting: 0.99 * getattr(learner.config, setting)})
            seen[setting] = distance(play(wrong, batches), theirs).largest
    return found, seen, versions


def compare(case: Case, options: argparse.Namespace) -> Entry:
    """Run both sides, then ours again with each mistake."""
    found, seen, versions = differences(case, options)
    entry = report.stamp("cpu")
    entry["versions"] |= versions
    about = {"name": case.name, "algo": case.algo, "reference": case.reference, "taken_out": case.taken_out}
    return entry | about | asdict(found) | {"mistakes": seen}


def agrees(entry: Entry) -> bool:
    return all(entry[what] <= BOUND for what in ("losses", "gradients", "parameters"))


def missed(entry: Entry) -> list[str]:
    """Mistakes that were not detected."""
    return [setting for setting, away in entry["mistakes"].items() if not away >= MISTAKE]


def mistakes_text(entry: Entry) -> str:
    wrong, unseen = list(entry["mistakes"]), missed(entry)
    seen = f"{len(wrong) - len(unseen)} of {len(wrong)}"
    return seen if not unseen else f"{seen}; not {', '.join(unseen)}"


def as_table(entries: Sequence[Entry]) -> str:
    rows = [
        [
            entry["name"],
            entry["reference"],
            ", ".join(entry["taken_out"]) or "nothing",
            *(f"{entry[what]:.0e}" for what in ("losses", "gradients", "parameters")),
            "yes" if agrees(entry) else "**no**",
            mistakes_text(entry),
        ]
        for entry in entries
    ]
    header = ["algorithm", "reference", "removed from it", "losses", "gradients", "parameters", "agrees",
              "mistakes detected"]  # fmt: skip
    return table(header, rows)


def sections(entries: dict[str, Entry]) -> Sections:
    order = {case.name: i for i, case in enumerate(CASES)}
    listed = sorted(entries.values(), key=lambda entry: order.get(entry["name"], len(order)))
    text = (
        "# The same updates as the references\n\n"
        f"Measured by `python -m benchmarks.parity`. Both implementations make {UPDATES} updates in float64 from "
        "the same weights, batches and noise. The table has the largest relative difference of a loss, of a "
        "gradient entry, and of a parameter or target entry after the last update (entries relative to the largest "
        f"of their tensor). They agree if no difference exceeds {BOUND:.0e}. Deliberate differences of a reference "
        "are removed from it and listed. A reference *by hand* is a second implementation of the paper's formulas "
        "with torch's layers, distributions and optimisers (`benchmarks/parity/by_hand.py`); "
        "`tests/test_parity_by_hand.py` compares it too. *Mistakes detected*: one of our settings at a time is "
        "changed by 1 %, and the comparison must fail. `tests/test_peer_parity.py` compares DQN, DDPG, TD3, SAC "
        "and TQC with Stable-Baselines3 and sb3-contrib in the same way.\n\n"
        f"{as_table(listed)}\n\n{report.origins(listed)}"
    )
    return {("results/parity", "parity"): text}


def left_out(case: Case, options: argparse.Namespace) -> str | None:
    """Why a case cannot run; None if it can."""
    if not hasattr(algorithms, case.learner):
        return "there is no such learner yet"
    if case.package and importlib.util.find_spec(case.package) is None:
        return f"needs the package {case.package}"
    wanted = [f"--{name.replace('_', '-')}" for name in case.needs if getattr(options, name) is None]
    return f"needs {' and '.join(wanted)}" if wanted else None


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)  # the networks are too small for several threads
    results = Results("parity", options.json)
    found: list[Entry] = []
    for case in CASES:
        if options.algo and case.algo not in options.algo:
            continue
        if reason := left_out(case, options):
            print(f"{case.name} ({case.reference}) left out: {reason}", flush=True)
            continue
        found.append(compare(case, options))
        results.add({f"{case.algo}/{case.name}": found[-1]})
        print(f"{case.name} ({case.reference}) {'agrees' if agrees(found[-1]) else 'DIFFERS'}", flush=True)
    print(f"\n{as_table(found)}\n")
    if found:
        results.render(sections)
    if any(not agrees(entry) or missed(entry) for entry in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
