"""Tables printed after training, evaluation, recording and export."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rl_training.data.scores import NOT_COMPARABLE
from rl_training.display.output import flags, program_name, show_table
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import decode_json
from rl_training.experiment.manifest import read_manifest, read_verified
from rl_training.experiment.metric_names import words_of
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import read_run_record
from rl_training.export.writing import Exported
from rl_training.memory import human_bytes
from rl_training.observation_spaces import example
from rl_training.runs.session import TrainResult
from rl_training.runtime.workflows import Recording

_MOST_TYPED_NUMBERS = 12


def show_results(results: Sequence[TrainResult]) -> None:
    """Print one run in full, or one line per run and the mean."""
    if len(results) == 1:
        show_result(results[0])
        return
    rows = []
    for result in results:
        metrics = result.metrics
        scored = f"{metrics['eval_return_mean']:.2f} ± {metrics['eval_return_std']:.2f}" if _scored(result) else "–"
        best = f"{metrics['eval_return_best']:.2f}" if "eval_return_best" in metrics else "–"
        rows.append([str(read_run_record(result.run_dir)["seed"]), scored, best, str(result.run_dir)])
    header = ("seed", words_of("eval_return_mean"), words_of("eval_return_best"), "run folder")
    show_table(rows, header, fold=False)
    returns = [result.metrics["eval_return_mean"] for result in results if _scored(result)]
    if len(returns) > 1:
        print(f"mean of {len(returns)} seeds: {mean(returns):.2f} ± {stdev(returns):.2f}")


def _scored(result: TrainResult) -> bool:
    return "eval_return_mean" in result.metrics


def show_result(result: TrainResult) -> None:
    """Print the results of a run, its paths, and commands for what to do next."""
    record, metrics = read_run_record(result.run_dir), result.metrics
    spec = get_algorithm_spec(record["algo"])
    rows = [
        ("algorithm", f"{spec.name} ({spec.title})"),
        ("environment", record["env_id"] or "none: evaluation was skipped"),
        ("seed", str(record["seed"])),
    ]
    if "epoch" not in metrics:  # which only offline runs have
        rows.append((words_of("global_step"), f"{metrics['global_step']:,.0f}"))
    rows.append((words_of("update_count"), f"{metrics['update_count']:,.0f}"))
    if "pretrain_updates_done" in metrics:
        rows.append(("of them on prior data", f"{metrics['pretrain_updates_done']:,.0f}"))
    if "dataset_size" in metrics:
        epochs = f", {metrics['epoch']:.1f} epochs" if "epoch" in metrics else ""
        rows.append(("data set", f"{metrics['dataset_size']:,.0f} transitions{epochs}"))
    rows += evaluation_rows(metrics)
    if "eval_return_best" in metrics and (result.run_dir / "best").is_dir():
        rows.append((words_of("eval_return_best"), f"{metrics['eval_return_best']:.2f} (in best/)"))
    if record.get("stop_reason"):
        rows.append(("stopped early", record["stop_reason"]))
    rows += [("run folder", str(result.run_dir)), ("checkpoint", str(result.checkpoint_path))]
    show_table(rows)
    if not flags.quiet:
        print("\nnext:")
        for command in _next_commands(result):
            print(f"  {command}")


def evaluation_rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Rows for an evaluation; empty if there was none."""
    if "eval_return_mean" not in metrics:
        return []
    mean, std = metrics["eval_return_mean"], metrics["eval_return_std"]
    rows = [
        (words_of("eval_return_mean"), f"{mean:.2f} ± {std:.2f} ({metrics['eval_episodes']:.0f} episodes)"),
        ("range of returns", f"{metrics['eval_return_min']:.2f} to {metrics['eval_return_max']:.2f}"),
        (words_of("eval_length_mean"), f"{metrics['eval_length_mean']:.1f}"),
    ]
    if "eval_success_rate" in metrics:
        rows.append((words_of("eval_success_rate"), f"{metrics['eval_success_rate']:.1%}"))
    if "eval_normalized_score" in metrics:
        rows.append(
            (words_of("eval_normalized_score"), f"{metrics['eval_normalized_score']:.1f} ({NOT_COMPARABLE})")
        )
    return rows


def show_recording(video: Recording) -> None:
    """Print the episodes, size and path of a video."""
    returns = ", ".join(f"{one:.2f}" for one in video.returns)
    show_table(
        [
            ("episodes", f"{len(video.returns)} ({sum(video.lengths):,} steps)"),
            ("returns", returns),
            ("video", f"{video.frames:,} frames, {video.seconds:.1f} s, {human_bytes(video.path.stat().st_size)}"),
            ("written to", str(video.path)),
        ]
    )


def show_exported(policy: Exported) -> None:
    """Print the exported files and their largest difference from the policy."""
    compared = f"{policy.observations:,} observations ({policy.source}, and corners)"
    difference = f"{policy.largest_difference:.1e} of {policy.allowed_difference:.1e} allowed, on {compared}"
    show_table(
        [
            ("policy", f"{policy.record['algorithm']}, step {policy.record['checkpoint']['step']:,}"),
            ("largest difference", difference),
            ("size", human_bytes(policy.num_bytes)),
            *(("written to", str(path)) for path in policy.files),
        ]
    )


def _next_commands(result: TrainResult) -> list[str]:
    """Commands for what to do next, under the name this program was called by; each needs --allow-import again."""
    config = TrainConfig(**_record_of(result.checkpoint_path, "config.json"))
    defaults = get_algorithm_spec(config.algo).chosen(config.regime)[1].defaults
    network = defaults.get("network")
    name, permission = program_name(), config.permission(default_network=network)
    run, checkpoint = shlex.quote(str(result.run_dir)), shlex.quote(str(result.checkpoint_path))
    more = f" --set total_timesteps={2 * max(config.total_timesteps, int(result.metrics['global_step']))}"
    if _record_of(result.checkpoint_path, "trainer.json").get("stop_final") is False:
        more = ""  # its own budget is not used up
    loading = config.permission(policy_alone=True, default_network=network)
    commands = [
        f"{name} predict {checkpoint} --obs {_example_observation(result.checkpoint_path)}{loading}",
        f"{name} resume {run}{more}{permission}",
        f"tensorboard --logdir {run}",
    ]
    if config.env_id is None:
        return commands
    return [f"{name} evaluate {checkpoint} --episodes 30{permission}", *commands]


def _example_observation(checkpoint: Path) -> str:
    """An observation that the policy accepts, quoted, or a file name if it is too long to type."""
    spaces = _record_of(checkpoint, "spaces.json")
    if spaces["obs_dim"] > _MOST_TYPED_NUMBERS:
        return '"@observation.json"'
    if spaces.get("observation") is not None:
        return shlex.quote(json.dumps(example(spaces["observation"])))
    return f'"{",".join(["0.0"] * spaces["obs_dim"])}"'


def _record_of(checkpoint: Path, name: str) -> Any:
    return decode_json(read_verified(checkpoint, name, read_manifest(checkpoint).files[name]))
