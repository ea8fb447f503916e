"""Generate OGBench's play data with its own oracles.

    python -m benchmarks.ogbench_data cube-single-play-v0 scene-play-v0 --output data --processes 16 [--json FILE]

A file has OGBench's layout: `observations actions terminals qpos qvel`, and `button_states` if there are buttons.
`dataset_kind: ogbench/…` reads it. Each episode has its own seeds for the environment and for numpy's global
generator, which the oracles use, so the data depend on `--seed` and not on the number of processes. The program
prints the SHA-256 of the arrays and adds it to the results page. The hash is reproducible with the same versions on
the same kind of processor; on others, the last bit of a sine may differ.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.report import Entry, Results, Sections
from rl_training.ogbench import require_ogbench

Arrays = dict[str, NDArray[Any]]
NOISE = {"noise": 0.1, "noise_smoothing": 0.5}
# Range of the probability that a cube is stacked on another one, for each number of cubes; 0.5 in other scenes.
STACKING = {
    "single": (0.0, 0.0),
    "double": (0.0, 0.25),
    "triple": (0.05, 0.35),
    "quadruple": (0.1, 0.5),
    "octuple": (0.0, 0.35),
}
# Coordinates of the cube in a scene's `qpos`, and the region that the camera does not see, except in the drawer.
CUBE, RIGHT, LEFT, DRAWER = slice(14, 17), 0.29, -0.3, (0.06, 0.08)
PACKAGES = ("ogbench", "mujoco", "dm-control", "numpy")  # packages that affect the data
TYPES = {"terminals": np.bool_, "button_states": np.int64}  # the others are float32


class Player:
    """One environment of a data set and the oracles that play in it."""

    def __init__(self, name: str, steps: int) -> None:
        require_ogbench()
        words = name.split("-")
        if words[-2:] != ["play", "v0"] or words[0] not in ("cube", "scene", "puzzle"):
            raise SystemExit(
                f"{name}: only play data of manipulation tasks are generated, as in cube-single-play-v0"
            )
        self.kind, self.stacking = words[0], STACKING.get(words[1], (0.5, 0.5))
        self.env: Any = gym.make(
            "-".join([*words[:-2], "v0"]),
            terminate_at_goal=False,
            mode="data_collection",
            max_episode_steps=steps,
            disable_env_checker=True,
        )
        parts = {"cube": ("cube",), "scene": ("cube", "button", "drawer", "window"), "puzzle": ("button",)}[
            self.kind
        ]
        closed = {"gripper_always_closed": True} if self.kind == "puzzle" else {}
        self.oracles = {part: self._oracle(part, closed) for part in parts}

    def _oracle(self, part: str, options: dict[str, bool]) -> Any:
        module = import_module(f"ogbench.manipspace.oracles.plan.{part}_plan")
        return getattr(module, f"{part.capitalize()}PlanOracle")(env=self.env, **NOISE, **options)

    def episode(self, seed: int, number: int) -> Arrays:
        """Episode `number`: the first attempt in which the cube of a scene stays visible."""
        attempt = 0
        while not self._visible(found := self._play(np.random.SeedSequence([seed, number, attempt]))):
            attempt += 1
        return found

    def _visible(self, episode: Arrays) -> bool:
        if self.kind != "scene":
            return True
        _, y, z = episode["qpos"][:, CUBE].T
        hidden = (y >= RIGHT) | ((y <= LEFT) & ((z < DRAWER[0]) | (z > DRAWER[1])))
        return not hidden.any()

    def _play(self, seed: np.random.SeedSequence) -> Arrays:
        first, second = (int(number) for number in seed.generate_state(2))
        np.random.seed(first)  # noqa: NPY002 - the oracles draw from it
        obs, info = self.env.reset(seed=second)
        stacking = np.random.uniform(*self.stacking)  # noqa: NPY002
        oracle = self.oracles[info["privileged/target_task"]]
        oracle.reset(obs, info)
        columns: dict[str, list[Any]] = defaultdict(list)
        over = False
        while not over:
            action = np.clip(oracle.select_action(obs, info), -1, 1)
            following, _, terminated, truncated, info = self.env.step(action)
            over = terminated or truncated
            if oracle.done:
                target, target_info = self.env.unwrapped.set_new_target(p_stack=stacking)
                oracle = self.oracles[target_info["privileged/target_task"]]
                oracle.reset(target, target_info)
            row = {"observations": obs, "actions": action, "terminals": over}
            row |= {key: info[f"prev_{key}"] for key in ("qpos", "qvel", "button_states") if f"prev_{key}" in info}
            for key, value in row.items():
                columns[key].append(value)
            obs = following
        return {key: np.array(column) for key, column in columns.items()}


@cache
def player(name: str, steps: int) -> Player:
    """The environment of this process."""
    warnings.simplefilter("ignore")
    return Player(name, steps)


def play(name: str, steps: int, seed: int, number: int) -> Arrays:
    """Play one episode in a worker."""
    found = player(name, steps).episode(seed, number)
    return {key: column.astype(TYPES.get(key, np.float32)) for key, column in found.items()}


def generate(name: str, *, episodes: int, steps: int, seed: int, processes: int) -> Arrays:
    """The arrays of a data set; they do not depend on `processes`."""
    one = partial(play, name, steps, seed)
    if processes == 1:
        found = list(_watched(map(one, range(episodes)), name, episodes))
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            found = list(_watched(pool.imap(one, range(episodes)), name, episodes))
    return {key: np.concatenate([episode[key] for episode in found]) for key in found[0]}


def _watched(parts: Iterator[Arrays], name: str, episodes: int) -> Iterator[Arrays]:
    began = time.monotonic()
    for count, part in enumerate(parts, 1):
        if count % max(1, episodes // 10) == 0:
            print(f"{name}: {count} of {episodes} episodes, {time.monotonic() - began:.0f} s", flush=True)
        yield part


def sha256(arrays: Arrays) -> str:
    """Hash of names, types, shapes and values."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        column = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {column.dtype.str} {column.shape}\n".encode())
        digest.update(column.data)
    return digest.hexdigest()


def write(path: Path, arrays: Arrays) -> None:
    """Write a file, which gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("sets", nargs="+", help="names of data sets, for example cube-single-play-v0")
    parser.add_argument("--output", type=Path, default=Path(), help="folder to write to")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1001, help="rows of an episode; the last one has no successor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    versions = {package: metadata.version(package) for package in PACKAGES}
    print(*(f"{package} {version}" for package, version in versions.items()))
    results = Results("ogbench_data", options.json)
    settings = {key: getattr(options, key) for key in ("episodes", "steps", "seed", "processes")}
    for name in options.sets:
        path, began, entry = options.output / f"{name}.npz", time.monotonic(), report.stamp("cpu")
        if path.exists():
            with np.load(path) as stored:
                arrays = dict(stored)
            print(f"{path}: {len(arrays['observations']):,} rows, sha256 {sha256(arrays)}", flush=True)
            continue
        write(path, arrays := generate(name, **settings))
        entry |= {"set": name, **settings, "rows": len(arrays["observations"]), "sha256": sha256(arrays)}
        entry |= {"seconds": round(time.monotonic() - began), "versions": entry["versions"] | versions}
        print(f"{path}: {entry['rows']:,} rows, sha256 {entry['sha256']}", flush=True)
        results.add({f"{name}/{options.episodes}/{options.steps}/{options.seed}/{entry['machine']}": entry})
    results.show(sections)


def sections(entries: dict[str, Entry]) -> Sections:
    rows = [
        [one["set"], f"{one['rows']:,}", one["seed"], f"`{one['sha256']}`", one["machine"], f"{one['seconds']:,}",
         one["processes"]]
        for one in sorted(entries.values(), key=lambda one: (str(one["set"]), str(one["machine"])))
    ]  # fmt: skip
    used = {package: sorted({one["versions"][package] for one in entries.values()}) for package in PACKAGES}
    words = "; ".join(f"{package} {' and '.join(found)}" for package, found in used.items())
    head = (
        f"## Data\n\nGenerated by `python -m benchmarks.ogbench_data` with {words}. A set may have another hash on "
        "another kind of processor."
    )
    header = ["set", "rows", "seed", "SHA-256 of the arrays", "machine", "seconds", "processes"]
    return {("results/ogbench", "ogbench-data"): f"{head}\n\n{report.table(header, rows)}"}


if __name__ == "__main__":
    main()
