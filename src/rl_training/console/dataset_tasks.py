"""Implementation of `rl-training dataset`, separate from its options because it imports torch."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training import seeding
from rl_training.data.columns import Columns
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import FileKind, convert_dataset, kind_of, read_columns
from rl_training.data.formats.files import require_new
from rl_training.data.formats.minari import minari_folder
from rl_training.data.formats.own import find_reader
from rl_training.data.loading import DatasetConfig
from rl_training.data.mixing import merge as merge_datasets
from rl_training.data.packing import allocate_rows, faults_of
from rl_training.data.statistics import DatasetStatistics
from rl_training.data.transitions import RowLayout
from rl_training.data.validation import MOST_FAULTS, declared_spaces, resolve_spaces, settled_spaces
from rl_training.display.output import note, one_line, show_json, show_table
from rl_training.environments.making import spaces_of
from rl_training.errors import ConfigError, DatasetError
from rl_training.experience.collecting import collect_dataset, collect_random
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.runs.state import config_of, spaces_from
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.spaces import SpaceSpec

_ACTIONS_SHOWN = 8


@dataclass(frozen=True)
class Source:
    """A data set to read, as the options of `show`, `validate` and `convert` describe it."""

    place: str
    kind: str | None
    env: str | None
    actions: DatasetConfig
    download: bool
    allow_import: bool

    def spaces(self) -> SpaceSpec | None:
        """The spaces of the environment that the data belong to."""
        return _spaces(self.env, self.allow_import)

    def require_reader(self) -> None:
        """Import the kind if it is `module:function`; raise if that is not permitted."""
        if self.kind is not None and ":" in self.kind:
            find_reader(self.kind, allow_import=self.allow_import)

    def open(self) -> Columns:
        """The columns of the file, which the caller must close."""
        self.require_reader()
        return read_columns(self.place, self.kind, download=self.download)


def show(source: Source, *, as_json: bool) -> None:
    spaces = source.spaces()
    with source.open() as raw:
        columns = source.actions.with_bounds(raw)
        unknown = spaces is None and declared_spaces(columns) is None
        dataset = TransitionDataset.from_columns(columns, spaces=_range_of_actions(columns) if unknown else spaces)
    statistics = dataset.statistics()
    if as_json:
        show_json({**asdict(statistics), "spaces": None if unknown else asdict(dataset.spaces)})
    else:
        show_table(_statistics_rows(statistics, dataset.spaces, bounded=not unknown))


def validate(source: Source) -> None:
    spaces = source.spaces()
    with source.open() as raw:
        columns = source.actions.with_bounds(raw)
        spaces = settled_spaces(columns, spaces)
        try:
            dataset = TransitionDataset.from_columns(columns, spaces=spaces)
        except DatasetError as first:
            raise _all_faults(source.place, first, faults_of(columns, spaces)) from None
    episodes = f"{len(dataset.episode_ends):,} episodes" if len(dataset.episode_ends) else "unordered"
    print(f"valid: {source.place}: {len(dataset):,} transitions, {episodes}")
    for remark in dataset.notes:
        note(f"note: {remark}")


def _all_faults(place: str, first: DatasetError, faults: list[DatasetError]) -> DatasetError:
    """The error for a file with `faults`. Several faults are printed, one per line, and counted in the error."""
    if len(faults) < 2:
        return first
    for fault in faults[:MOST_FAULTS]:
        print(f"fault: {one_line(fault)}", file=sys.stderr, flush=True)
    number = f"{len(faults)}" if len(faults) <= MOST_FAULTS else f"more than {MOST_FAULTS}"
    return DatasetError(f"{place}: {number} faults, listed above; correct the file")


def convert(source: Source, target: str, to: str | None) -> None:
    new = _new_kind(target, to)
    spaces, options = source.spaces(), dict[str, Any](download=source.download, source_kind=source.kind)
    source.require_reader()
    if source.actions.action_low is not None or source.actions.num_actions is not None:
        with source.open() as columns:
            spaces = resolve_spaces(source.actions.with_bounds(columns), spaces)
    print(f"wrote {convert_dataset(source.place, new, target, spaces=spaces, **options)}")


def merge(sources: list[str], output: str, env: str | None, *, allow_import: bool) -> None:
    _new_kind(output)
    spaces = _spaces(env, allow_import)
    _write(merge_datasets([TransitionDataset.load(one, spaces=spaces) for one in sources]), output)


def _write(dataset: TransitionDataset, output: str) -> None:
    place = dataset.save(output)
    show_table([*_statistics_rows(dataset.statistics(), dataset.spaces), ("written to", str(place))])


def collect(
    env: str, output: str, size: int, seed: int, policy: str | None, *, stochastic: bool, allow_import: bool
) -> None:
    _new_kind(output)
    if stochastic and policy is None:
        raise ConfigError("--stochastic: needs --policy CHECKPOINT; without one actions are random anyway")
    config = TrainConfig(algo="bc", env_id=env, total_timesteps=1, seed=seed, allow_import=allow_import)
    checkpoint = None if policy is None else open_checkpoint(policy)
    if checkpoint is not None and (before := config_of(checkpoint)).env_id == env:
        config = config.replace(env_kwargs=before.env_kwargs, wrappers=before.wrappers)
    spaces = spaces_of(config)
    note(f"collecting {size:,} transitions of {env}")
    if checkpoint is None:
        dataset = collect_random(config, spaces, size, seed)
    else:
        act = _policy_actions(checkpoint, config, spaces, stochastic)
        dataset = collect_dataset(config, spaces, size, seed, act, name=f"{policy} in {env}")
    _write(dataset, output)


def from_run(run: str, output: str, *, allow_import: bool) -> None:
    _new_kind(output)
    _write(replay_of(open_checkpoint(run), allow_import=allow_import), output)


def replay_of(checkpoint: Checkpoint, *, allow_import: bool = False) -> TransitionDataset:
    """The replay buffer of a checkpoint as episodes, one environment after another.

    Truncations are stored only if `n_step` > 1. Without them an episode that did not terminate ends at a row whose
    next observation differs from the observation of the following row (a reset to the same observation is not
    detected). If the buffer was full, its oldest rows were overwritten, and the first episode of each environment
    is incomplete.
    """
    info, config, spaces = checkpoint.rows, config_of(checkpoint), spaces_from(checkpoint)
    if info is None or info.filled == 0:
        raise ConfigError(f"{checkpoint.path}: holds no replay buffer; give the folder of an online run or of RLPD")
    slots = allocate_rows(str(checkpoint.path), info.filled, info.width)
    checkpoint.read_rows(torch.from_numpy(slots))
    numbers = np.arange(info.added - info.filled, info.added)  # rows in the order they were added
    numbers = numbers[np.argsort(numbers % config.num_envs, kind="stable")]
    layout = RowLayout.of(spaces)
    rows = allocate_rows(str(checkpoint.path), info.filled, layout.width)
    ordered, known = numbers % info.capacity, 2 * layout.obs_dim + layout.action_dim
    rows[:, :known], rows[:, -2:] = slots[ordered, :known], slots[ordered, -2:]  # without extra columns
    rows[:, known:-2] = 0.0
    batch = layout.unpack(torch.from_numpy(rows))
    ends = np.ones(len(rows), np.bool_)
    ends[:-1] = (batch.dones[:-1] != 0).numpy() | (batch.next_obs[:-1] != batch.obs[1:]).any(1).numpy()
    batch.dones.clamp_(min=0.0)  # in `rows`: a truncated episode did not terminate
    ends[:-1] |= np.diff(numbers % config.num_envs) != 0
    notes = [f"the oldest {info.added - info.filled:,} transitions are lost"] if info.added > info.filled else []
    own = resolve(config.replace(allow_import=allow_import)).to_dict()
    scaled = own.get("reward_scale", 1) != 1 or own.get("reward_shift") or own.get("reward_range_scaling")
    # Data in memory may have been scaled before.
    if scaled or checkpoint.records["dataset"].get("reward_map", [1, 0]) != [1, 0]:
        notes.append("rewards are scaled and shifted as the run configured")
    return TransitionDataset(rows, spaces, np.flatnonzero(ends), str(checkpoint.path), tuple(notes))


def _policy_actions(checkpoint: Checkpoint, config: TrainConfig, spaces: SpaceSpec, stochastic: bool) -> Any:
    """Return `act(obs [1, O]) -> internal actions` of a checkpoint's policy."""
    loaded = load_policy(checkpoint, allow_import=config.allow_import)
    if difference := spaces.difference(loaded.spaces):
        raise ConfigError(f"--env {config.env_id}: does not fit the policy of {checkpoint.path} ({difference})")
    if stochastic:
        loaded.require_stochastic()
    rng, sampled = seeding.exploration(config.seed or 0), loaded.policy.samples(False if stochastic else None)

    def act(obs: NDArray[np.float32]) -> NDArray[Any]:
        with torch.inference_mode():
            inputs = torch.from_numpy(obs)
            if not sampled:
                return loaded.policy.mode(inputs).numpy()
            draws = rng.standard_normal((len(obs), spaces.action_dim)).astype(np.float32)
            return loaded.policy.sample(inputs, torch.from_numpy(draws)).numpy()

    return act


def _range_of_actions(columns: Columns) -> SpaceSpec:
    """Spaces for showing data that declare none: action bounds as wide as the data."""
    chunks = [columns.data["actions"].read(*chunk) for chunk in columns.chunks()]
    if len(columns.data["actions"].shape) == 1:
        if columns.data["actions"].dtype.kind not in "iu":
            raise DatasetError(f"{columns.name}: column 'actions' must be [n, A], or [n] whole numbers")
        first, last = min(int(chunk.min()) for chunk in chunks), max(int(chunk.max()) for chunk in chunks)
        return SpaceSpec(columns.obs_dim, num_actions=last - first + 1, start=first, action_dtype="int64")
    with np.errstate(invalid="ignore"):
        low = np.min([chunk.min(0) for chunk in chunks], 0).astype(np.float64)
        high = np.max([chunk.max(0) for chunk in chunks], 0).astype(np.float64)
    finite = np.isfinite(low) & np.isfinite(high)  # non-finite values are reported when the rows are checked
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    return SpaceSpec(columns.obs_dim, tuple(low.tolist()), tuple(np.where(high > low, high, low + 1.0).tolist()))


def _spaces(env: str | None, allow_import: bool) -> SpaceSpec | None:
    if env is None:
        return None
    return spaces_of(TrainConfig(algo="bc", env_id=env, total_timesteps=1, allow_import=allow_import))


def action_space(low: str | None, high: str | None, num_actions: int | None) -> DatasetConfig:
    """Parse and validate the options of the action space."""
    given = {"action_low": low, "action_high": high}
    values: dict[str, Any] = {"num_actions": num_actions}
    for name, text in given.items():
        try:
            values[name] = None if text is None else [float(part) for part in text.split(",")]
        except ValueError:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {text}: write one number per action component: -1.0,-2.0") from None
    return DatasetConfig.parse(values)


def _new_kind(target: str, kind: Any = None) -> FileKind:
    """The format of a new data set, from its name if not given; raise if it exists or cannot be written."""
    found: FileKind = kind or kind_of(target)
    require_new(minari_folder(target) if found == "minari" else Path(target))
    return found


def _statistics_rows(of: DatasetStatistics, spaces: SpaceSpec, *, bounded: bool = True) -> list[tuple[str, str]]:
    rows = [("data set", of.name), ("transitions", f"{of.rows:,}")]
    if of.episodes:
        rows += [
            ("episodes", f"{of.episodes:,} ({of.timeouts:,} ended by a time limit or cut)"),
            ("return", f"{of.return_mean:.2f} ± {of.return_std:.2f}, {of.return_min:.2f} to {of.return_max:.2f}"),
            ("length", f"{of.length_mean:.1f}, {of.length_min} to {of.length_max}"),
        ]
    else:
        rows.append(("episodes", "unordered transitions"))
    kind = f"{spaces.num_actions} discrete" if spaces.discrete else f"{spaces.action_dim} continuous"
    if spaces.discrete and not bounded:
        kind = "discrete, their number is unknown: give an environment (env_id) or num_actions"
    rows += [
        ("terminations", f"{of.terminals:,}"),
        ("reward", f"{of.reward_mean:.4g}, {of.reward_min:.4g} to {of.reward_max:.4g}"),
        ("actions", kind),
        ("action minimum", _vector(of.action_min)),
        ("action maximum", _vector(of.action_max)),
    ]
    if spaces.discrete:
        rows.append(("actions taken", _shares(of.action_counts, spaces.start)))
    if not bounded and not spaces.discrete:
        rows.append(("action bounds", "unknown: training needs action_low and action_high, or an environment"))
    elif not spaces.discrete:
        rows.append(("action bounds", f"{_vector(spaces.low)} to {_vector(spaces.high)}"))
    rows += [("observation mean", _vector(of.obs_mean)), ("observation std", _vector(of.obs_std))]
    return rows + [("note", text) for text in of.notes]


def _shares(counts: tuple[int, ...], start: int) -> str:
    """The shares of the first few discrete actions, and the number of actions never taken."""
    total, shown = sum(counts), min(len(counts), _ACTIONS_SHOWN)
    parts = [f"{start + i}: {counts[i] / total:.1%}" for i in range(shown)]
    if len(counts) > shown:
        parts.append(f"… {len(counts) - shown} more")
    if never := counts.count(0):
        parts.append(f"{never} never")
    return ", ".join(parts)


def _vector(values: tuple[float, ...]) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in values)}]"
