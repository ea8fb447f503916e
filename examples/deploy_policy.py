"""Serve a trained policy: read one observation per line of JSON, write one action per line.

    echo '[1.0, 0.0, 0.0]' | python examples/deploy_policy.py runs/<run>/best
    echo '[1.0, 0.0, 0.0]' | python examples/deploy_policy.py policy.onnx
    python examples/deploy_policy.py --try-in deployed

A checkpoint, a run folder (its newest checkpoint) or the run's `best` folder needs this package, but no environment
and no data, and may have been moved. A policy written by `rl-training export` needs only onnxruntime (.onnx), or
numpy and the `policy_runner.py` next to it (.npz); neither this package nor torch is imported. `--try-in FOLDER`
trains a small policy, or uses the one you name, exports it to FOLDER in both formats and compares all three.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Policy(Protocol):
    def predict(self, obs: ArrayLike, /) -> NDArray[Any]: ...


class OnnxPolicy:
    """An exported policy, with onnxruntime only."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path)
        self.noise = [one for one in self.session.get_inputs() if one.name == "noise"]  # if actions are samples
        self.rng = np.random.default_rng()

    def predict(self, obs: ArrayLike, /) -> NDArray[Any]:
        given = np.asarray(obs, np.float32)
        rows = np.atleast_2d(given)
        draws = {one.name: self.rng.standard_normal((len(rows), one.shape[1]), np.float32) for one in self.noise}
        action: NDArray[Any] = self.session.run(["action"], {"observation": rows, **draws})[0]
        return action[0] if given.ndim == 1 else action


class NumpyPolicy:
    """An exported policy, with numpy and the runner that was written next to it."""

    def __init__(self, path: Path) -> None:
        sys.path.insert(0, str(path.resolve().parent))
        from policy_runner import Policy

        self.policy = Policy(path)

    def predict(self, obs: ArrayLike, /) -> NDArray[Any]:
        action: NDArray[Any] = self.policy(obs)
        return action


def opened(place: Path) -> Policy:
    """Load the policy at `place`: an exported file, a run or a checkpoint."""
    if place.suffix == ".onnx":
        return OnnxPolicy(place)
    if place.suffix == ".npz":
        return NumpyPolicy(place)
    from rl_training.runtime.loading import load_policy, open_checkpoint

    return load_policy(open_checkpoint(place))


def actions(policy: Policy, lines: Iterable[str]) -> Iterator[Any]:
    """Yield the action, in the environment's units, for each observation."""
    for line in lines:
        if not line.strip():
            continue
        try:
            obs = json.loads(line)
        except ValueError:
            raise ValueError(f"an observation is JSON, such as [1.0, 0.0, 0.0]; got {line.strip()!r}") from None
        yield policy.predict(obs).tolist()


def try_all(folder: Path, run: Path | None, steps: int) -> None:
    """Export a policy in both formats and compare all three forms, each in its own process."""
    from rl_training import SAC, load

    if run is None:
        model = SAC("Pendulum-v1", seed=1, learning_starts=200, output_dir=folder / "runs", eval_episodes=1)
        run = model.learn(total_timesteps=steps).run_dir
    written = [load(run).export(folder / name) for name in ("policy.onnx", "policy.npz")]
    for made in written:
        print(f"{made.path}: {made.num_bytes:,} bytes, largest difference {made.largest_difference:.1e}")
    observations = np.load(folder / "policy.test.npz")["observation"][:5].tolist()
    typed = "".join(f"{json.dumps(one)}\n" for one in observations)
    answers = []
    for place in (run, *(made.path for made in written)):
        command = [sys.executable, __file__, str(place)]
        done = subprocess.run(command, input=typed, capture_output=True, text=True, check=True)  # noqa: S603
        answers.append([json.loads(line) for line in done.stdout.splitlines()])
    print("observation, and the action of the run, of policy.onnx and of policy.npz")
    for obs, *three in zip(observations, *answers):
        print(np.round(obs, 3).tolist(), *(np.round(action, 5).tolist() for action in three))


def main() -> None:
    parser = argparse.ArgumentParser(description="Observations as JSON lines in, actions out.")
    parser.add_argument("checkpoint", type=Path, nargs="?", help="or a run folder, or an exported .onnx or .npz")
    parser.add_argument("--try-in", type=Path, metavar="FOLDER", help="export to it in both formats and compare")
    parser.add_argument("--steps", type=int, default=2_000, help="training steps if no checkpoint is given")
    options = parser.parse_args()
    if options.checkpoint is None and options.try_in is None:
        parser.error("name a checkpoint, a run folder, an exported policy, or --try-in FOLDER")
    try:
        if options.try_in is not None:
            try_all(options.try_in, options.checkpoint, options.steps)
            return
        for action in actions(opened(options.checkpoint), sys.stdin):
            print(json.dumps(action), flush=True)
    except Exception as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
