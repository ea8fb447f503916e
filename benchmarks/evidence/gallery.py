"""Train and evaluate the published policies, one per algorithm, and add them to the package and docs/gallery.md.

    python -m benchmarks.evidence.gallery [--algo sac td3 …] [--work DIR]    train all or some of the policies
    python -m benchmarks.evidence.gallery --render                           only write the tables of the page

Each policy is the last policy of one run with seed 0. Neither the seed nor the step was selected by score. Settings
were changed only if those of the preset did not work with such small networks. The command on the page trains the
run in DIR (`build/gallery`); a finished run of the same command in DIR is reused.

A published policy is a checkpoint without critics, optimisers and replay rows. Its record `card` contains the
commands, the commit, the versions, and the score on episodes that were not used for training or selection. A policy
is not published if its return is below the one that bare classes must reach on its task.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.evidence.bare import BARE
from benchmarks.evidence.judging import judge
from benchmarks.report import ROOT, name_of, table
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.gallery import GALLERY
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.retention import discard, list_checkpoints
from rl_training.experiment.runs import read_run_record
from rl_training.runs.state import policy_alone, read_run_checkpoint

EPISODES = 100
REPLAY = "pendulum-replay.npz"  # the name in the presets
TEACHER = "sac"
SMALL = "hidden_sizes=[64,64]"
FAST = "learning_rate=1e-3"  # networks a quarter as wide as those of the preset need a higher rate
# The configuration and its overrides, in addition to the size of the networks.
RECIPES: dict[str, tuple[str, ...]] = {
    "dqn": ("--algo dqn --env CartPole-v1 --steps 50000",),  # with its preset the last policy is poor
    "ddpg": ("--config ddpg/pendulum",),
    "td3": ("--config td3/pendulum",),
    "sac": ("--config sac/pendulum", "total_timesteps=30000"),
    "tqc": ("--config tqc/pendulum",),
    "redq": ("--config redq/pendulum",),
    "bc": ("--config bc/pendulum-replay", FAST, "top_fraction=0.5"),
    "td3_bc": ("--config td3_bc/pendulum-replay", FAST),
    "iql": ("--config iql/pendulum-replay", FAST, "total_timesteps=50000"),
    "cql": ("--config cql/pendulum-replay",),
    "awac": ("--config awac/pendulum-replay", FAST),
    "crr": ("--config crr/pendulum-replay", FAST),
    "edac": ("--config edac/pendulum-replay", FAST),
    "rlpd": ("--config rlpd/pendulum", "dataset_kind=npz", f"dataset_path={REPLAY}"),
    "rebrac": ("--config rebrac/pendulum-replay",),
    "crossq": ("--config crossq/pendulum",),
    "flash_sac": ("--config flash_sac/pendulum", "hidden_sizes=[32]"),  # blocks are four times as wide inside
    "fql": ("--config fql/pendulum-replay", "total_timesteps=10000"),
    "cal_ql": ("--config cal_ql/pendulum-replay",),
}
FROM_RUN = ["rl-training", "dataset", "from-run", "runs/RUN", "-o", REPLAY]


def train_command(algo: str) -> list[str]:
    base, *changes = RECIPES[algo]
    sized = any(change.startswith("hidden_sizes") for change in changes)
    sets = [word for change in (*([] if sized else [SMALL]), *changes) for word in ("--set", change)]
    return ["rl-training", "train", *base.split(), "--seed", "0", "--device", "cpu", *sets]


def commands(algo: str) -> list[list[str]]:
    """The commands that train a policy, after those that make its data; RUN is the run of the preceding command."""
    own = train_command(algo)
    online = get_algorithm_spec(algo).regime == "online"
    return [own] if online else [train_command(TEACHER), FROM_RUN, own]


def perform(words: Sequence[str], work: Path) -> None:
    """Run a command as shown on the page, with the package of this checkout."""
    print(f"$ {shlex.join(words)}", flush=True)
    work.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    line = [sys.executable, "-m", "rl_training", "--quiet", *words[1:]]
    subprocess.run(line, cwd=work, env=environment, check=True)


def finished(algo: str, work: Path) -> Path | None:
    """The newest finished run of the command."""
    words = train_command(algo)[1:]
    for run in sorted((work / "runs").glob(f"*__{algo}__s0__*"), reverse=True):
        made_by = shlex.split((run / "command.txt").read_text(encoding="utf-8"))
        if read_run_record(run)["status"] == "finished" and made_by[-len(words) :] == words:
            return run
    return None


def trained(algo: str, work: Path) -> Path:
    """The run of an algorithm; trains it if it does not exist."""
    if (run := finished(algo, work)) is not None:
        return run
    if algo != TEACHER and len(commands(algo)) > 1 and not (work / REPLAY).exists():
        teacher = trained(TEACHER, work).relative_to(work)
        perform([word.replace("runs/RUN", str(teacher)) for word in FROM_RUN], work)
    perform(train_command(algo), work)
    run = finished(algo, work)
    assert run is not None
    return run


def line_of(algo: str) -> float:
    """The return that bare classes must reach on the task; behaviour cloning has no required return."""
    lines = [bare.line for bare in BARE.values() if bare.env == BARE[algo].env and bare.line is not None]
    return max(lines)


def publish(algo: str, run: Path) -> bool:
    """Evaluate the last policy of a run and add it to the package if its return is high enough."""
    saved = policy_alone(read_run_checkpoint(find_checkpoint(run)))
    step = saved.records["trainer"]["clock"]["global_step"]
    with tempfile.TemporaryDirectory() as folder:
        alone = write_checkpoint(Path(folder), step, tensors=saved.tensors, records=saved.records)
        played = judge(alone, EPISODES)
    card = report.stamp("cpu") | {
        "commit": name_of(ROOT),
        "commands": [shlex.join(words) for words in commands(algo)],
        "steps": step,
        "updates": saved.records["trainer"]["counters"]["updates"],
        "score": {
            "mean": played["mean"],
            "std": statistics.pstdev(played["returns"]),
            "min": min(played["returns"]),
            "max": max(played["returns"]),
            "episodes": len(played["returns"]),
            "seed": played["seed"],
        },
    }
    good = card["score"]["mean"] >= line_of(algo)
    text = f"{algo}: {card['score']['mean']:.1f} ± {card['score']['std']:.1f} over {EPISODES} episodes"
    print(text if good else f"{text}: below {line_of(algo):g}, NOT published; look into {run}", flush=True)
    if not good:
        return False
    made = write_checkpoint(GALLERY / algo, step, tensors=saved.tensors, records={**saved.records, "card": card})
    for other in list_checkpoints(GALLERY / algo):
        if other != made:
            discard(other)
    return True


def cards() -> dict[str, dict[str, Any]]:
    """The `card` of each published policy, in the order of the registry."""
    names = [name for name in algorithm_names() if (GALLERY / name).is_dir()]
    found = {name: read_checkpoint(find_checkpoint(GALLERY / name)) for name in names}
    return {
        name: {**one.records["card"], "env": one.records["config"]["env_id"], "bytes": size_of(one.path)}
        for name, one in found.items()
    }


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def sections(cards: dict[str, dict[str, Any]]) -> report.Sections:
    """The table of the page, the command of each row, and the commands that make the data."""
    rows = []
    for name, card in cards.items():
        spec, score = get_algorithm_spec(name), card["score"]
        length = f"{card['updates']:,} updates"
        length = length if spec.regime == "offline" else f"{card['steps']:,} steps, {length}"
        returned, size = f"{score['mean']:.1f} ± {score['std']:.1f}", f"{card['bytes'] / 1e3:.0f}"
        page = f"[{spec.title.partition(';')[0]}](algorithms/{name}.md)"
        rows.append([page, f"`gallery/{name}`", card["env"], returned, length, size])
    header = ["algorithm", "name", "task", "return", "trained for", "kB"]
    total = sum(card["bytes"] for card in cards.values()) / 1e3
    played = {f"{card['score']['episodes']} episodes of seed {card['score']['seed']}" for card in cards.values()}
    threads = " / ".join(sorted({f"OMP_NUM_THREADS={card['threads']}" for card in cards.values()}))
    origin = report.origins([card | {"checkout": card["commit"]} for card in cards.values()])
    note = (
        f"Return: mean ± standard deviation over {' / '.join(sorted(played))}. Total size: {total:.0f} kB. "
        f"{origin} Trained with {threads}."
    )
    return {
        ("gallery", "gallery"): f"{table(header, rows)}\n\n{note}",
        ("gallery", "gallery-data"): shown([shlex.join(words) for words in commands("bc")[:-1]]),
        ("gallery", "gallery-commands"): shown([card["commands"][-1] for card in cards.values()]),
    }


def shown(lines: Sequence[str]) -> str:
    folded = [
        " \\\n".join(textwrap.wrap(line, 78, subsequent_indent="    ", break_on_hyphens=False)) for line in lines
    ]
    return "<!-- not run: minutes of training -->\n```bash\n" + "\n".join(folded) + "\n```"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gallery", help="folder for the runs")
    parser.add_argument("--render", action="store_true", help="only write the tables of the page")
    options = parser.parse_args(given)
    chosen, work = [] if options.render else options.algo, options.work.resolve()
    refused = [algo for algo in chosen if not publish(algo, trained(algo, work))]
    report.write_sections(sections(cards()))
    if refused:
        raise SystemExit(f"not good enough: {', '.join(refused)}")


if __name__ == "__main__":
    main()
