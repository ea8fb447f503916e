"""`DatasetConfig`, the keys of `algo_kwargs` for the data set, and `load_dataset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from rl_training.data.building import Build, unpacked
from rl_training.data.columns import Columns
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import NEXT_ACTIONS, Column
from rl_training.data.formats import kind_of, read_columns
from rl_training.data.formats.minari import minari_folder
from rl_training.data.formats.own import find_reader
from rl_training.data.packing import allocate_rows
from rl_training.data.placement import MemoryBudget, PackedFile
from rl_training.data.validation import counted_spaces, declared_spaces, with_action_space
from rl_training.errors import ConfigError
from rl_training.ogbench import PREFIX
from rl_training.settings import (
    NonNegativeInt,
    OnlyWith,
    PathText,
    PositiveFloat,
    PositiveInt,
    Rows,
    Settings,
)
from rl_training.spaces import SpaceSpec

Collect = Callable[[int, int], TransitionDataset]
_KINDS = ("random", "npz", "hdf5", "minari")


def _known_kind(value: str) -> str:
    if value not in _KINDS and not value.startswith(PREFIX) and not all(value.partition(":")):
        raise ValueError(f"must be {', '.join(map(repr, _KINDS[:-1]))} or {_KINDS[-1]!r}, got {value!r}")
    return value


class DatasetChoice(Settings):
    """The source of one data set."""

    dataset_kind: Annotated[str, AfterValidator(_known_kind)] | None = None
    """source of the data: `random` collects it from the environment; `npz`, `hdf5` or `minari`; OGBench's play data
    labelled with a task, `ogbench/cube-single-play-singletask-task2-v0`; your own format as `module:function`, with
    --allow-import; null: by the suffix of `dataset_path`, or passed to `learn(dataset=…)`"""
    dataset_path: PathText | None = None
    """path of the `npz` or `hdf5` file, or of the file of your own format"""
    dataset_id: str | None = None
    """id of the Minari data set"""
    dataset_download: bool = False
    """download the Minari data set if it is not on this machine"""
    dataset_size: Annotated[PositiveInt, OnlyWith("dataset_kind", "random")] = 10_000
    """number of transitions to collect (`random`)"""
    dataset_seed: Annotated[NonNegativeInt, OnlyWith("dataset_kind", "random")] = 0
    """seed for collecting (`random`)"""

    @model_validator(mode="before")
    @classmethod
    def _kind_by_name(cls, values: Any) -> Any:
        """Set a missing kind by the suffix of the file."""
        path = values.get("dataset_path") if isinstance(values, dict) else None
        if isinstance(path, str) and values.get("dataset_kind") is None and (kind := kind_of(path)) != "minari":
            return {**values, "dataset_kind": kind}
        return values

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        kind, in_file = self.dataset_kind, self.reader is not None or self.dataset_kind in ("npz", "hdf5")
        if in_file and self.dataset_path is None:
            raise ValueError(f"dataset_kind {kind!r} needs dataset_path, the path of the file")
        if kind == "minari" and self.dataset_id is None:
            raise ValueError("dataset_kind 'minari' needs dataset_id, for example 'D4RL/pen/human-v2'")
        unused = {"dataset_path": "npz or hdf5"} if not in_file else {}
        unused |= {"dataset_id": "minari", "dataset_download": "minari"} if kind != "minari" else {}
        for name, kinds in unused.items():
            if getattr(self, name):
                found = "without dataset_kind" if kind is None else f"by dataset_kind {kind!r}"
                raise ValueError(f"{name} is not used {found}; set dataset_kind: {kinds}")
        return self

    @property
    def reader(self) -> str | None:
        """The kind if the rows depend on more than the file: OGBench's task, or the user's function."""
        return None if self.dataset_kind in (None, *_KINDS) else self.dataset_kind

    @property
    def own_reader(self) -> str | None:
        """The name of the user's function that reads the file."""
        return None if self.reader is None or self.reader.startswith(PREFIX) else self.reader

    def files(self) -> list[Path]:
        """The source files; empty if the data are collected."""
        if self.dataset_kind == "minari":
            assert self.dataset_id is not None
            folder = minari_folder(self.dataset_id)
            return [folder / "main_data.hdf5", folder / "metadata.json"]
        return [] if self.dataset_path is None else [Path(self.dataset_path).expanduser()]

    def open(self, collect: Collect | None) -> Columns | TransitionDataset:
        """The columns of the file, which the caller must close, or collected transitions."""
        if self.dataset_kind is None:
            raise ConfigError(
                "dataset_kind is missing: pass --dataset or learn(dataset=…), set it with dataset_path or "
                "dataset_id, or ask for transitions of random actions with dataset_kind: random",
                key="algo_kwargs.dataset_kind",
            )
        if self.dataset_kind == "random":
            if collect is None:
                raise ConfigError(
                    "dataset_kind 'random' needs an environment to collect from; set env_id, or "
                    "dataset_kind and dataset_path",
                    key="algo_kwargs.dataset_kind",
                )
            return collect(self.dataset_size, self.dataset_seed)
        place = self.dataset_id if self.dataset_kind == "minari" else self.dataset_path
        assert place is not None
        return read_columns(place, self.dataset_kind, download=self.dataset_download)


class WeightedChoice(DatasetChoice):
    """One part of a mixture."""

    weight: PositiveFloat = 1.0
    """sampling weight, relative to the other data sets"""


class DatasetConfig(DatasetChoice):
    """The data set of a run and its transforms.

    The best episodes are selected first (`top_fraction`). Then rewards are scaled by the range of the remaining
    returns and by `reward_scale`, and shifted. The model normalises observations by the moments of the data.
    `action_low` and `action_high`, or `num_actions`, define the action space if there is no environment.
    """

    datasets: tuple[WeightedChoice, ...] = ()
    """several data sets to mix; each has the keys above and a `weight`"""
    normalize_observations: Rows[bool] = False
    """normalise by the mean and std of the data, which are stored with the policy; they stay fixed online"""
    reward_scale: Rows[PositiveFloat] = 1.0
    """factor of the rewards, also of new experience"""
    reward_shift: Rows[float] = 0.0
    """added to rewards after scaling, also to those of new experience"""
    reward_range_scaling: Rows[bool] = False
    """scale rewards so that episode returns span 1000, as IQL does"""
    top_fraction: Rows[Annotated[float, Field(gt=0, le=1)]] = 1.0
    """keep this fraction of the episodes, the best by return discounted with 0.99"""
    action_low: tuple[float, ...] | None = None
    """lower action bounds, if neither the environment nor the file has them"""
    action_high: tuple[float, ...] | None = None
    """upper action bounds, with `action_low`"""
    num_actions: PositiveInt | None = None
    """number of discrete actions, if neither has it; null means the largest index in the data plus one"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Records of runs from the time when `random` was the default have both `random` and `datasets`.
        if self.datasets and self.dataset_kind not in (None, "random"):
            raise ValueError("datasets excludes dataset_kind, dataset_path and dataset_id; list them all there")
        if self.num_actions is not None and self.action_low is not None:
            raise ValueError("num_actions is for discrete actions, action_low for continuous ones; leave one out")
        if (self.action_low is None) != (self.action_high is None):
            raise ValueError("action_low and action_high must be given together")
        if self.action_low is not None and self.action_high is not None:
            if len(self.action_low) != len(self.action_high) or not self.action_low:
                raise ValueError(
                    f"action_low and action_high differ in length: {len(self.action_low)} and "
                    f"{len(self.action_high)}"
                )
            for low, high in zip(self.action_low, self.action_high):
                if low >= high:
                    raise ValueError(f"action_low must be < action_high, got {low} and {high}")
        return self

    def with_bounds(self, columns: Columns) -> Columns:
        """`columns` with the configured action space, which must not contradict that of the file."""
        if self.num_actions is not None:
            return with_action_space(columns, None, None, self.num_actions, columns.start)
        if self.action_low is None:
            return columns
        return with_action_space(columns, self.action_low, self.action_high)

    def transform(self, dataset: TransitionDataset, *, in_place: bool = False) -> TransitionDataset:
        """Select episodes, then scale and shift rewards; `in_place` overwrites the rows of `dataset`."""
        dataset = dataset.top_fraction(self.top_fraction, in_place=in_place)
        if self.reward_range_scaling:
            dataset = dataset.with_return_range(in_place=in_place)
        if self.reward_scale != 1.0 or self.reward_shift != 0.0:
            dataset = dataset.with_rewards(self.reward_scale, self.reward_shift, in_place=in_place)
        return dataset

    def choices(self) -> Sequence[DatasetChoice]:
        """The sources: one, or those of a mixture."""
        return self.datasets or (self,)

    def folder(self) -> Path | None:
        """The folder that relative paths refer to; None if all paths are absolute."""
        paths = [Path(choice.dataset_path) for choice in self.choices() if choice.dataset_path is not None]
        return None if all(path.is_absolute() for path in paths) else Path.cwd()

    def identity(self) -> dict[str, Any]:
        """All settings, apart from the source files, that the rows depend on."""
        whole = self.model_dump(exclude={"normalize_observations", *DatasetChoice.model_fields, "datasets"})
        readers = [choice.reader for choice in self.choices()]
        whole |= {"readers": readers} if any(readers) else {}
        return whole | {"weights": [choice.weight for choice in self.datasets]}

    def import_own(self, allow_import: bool) -> None:
        for choice in self.choices():
            if choice.own_reader is not None:
                find_reader(choice.own_reader, allow_import=allow_import)


def load_dataset(
    config: DatasetConfig,
    *,
    spaces: SpaceSpec | None,
    collect: Collect | None = None,
    extras: tuple[Column, ...] = (),
    budgets: MemoryBudget | None = None,
) -> TransitionDataset:
    """Load, check, mix and transform the configured data set, and add the columns `extras`.

    `spaces` are the environment's and are checked against the data. Without an environment, the action space is
    given by `action_low` and `action_high`, by `num_actions`, by Minari or by the file. `collect(size, seed)` makes
    the data of kind `random`. With `budgets`, rows that exceed host memory are packed once into a file next to the
    data.
    """
    packed_file = None if budgets is None else _packed_file(config, spaces, extras, budgets)
    if budgets is not None and packed_file is not None and (found := packed_file.find()) is not None:
        return unpacked(found, _name(config), spaces, budgets, extras)
    with ExitStack() as open_files:
        parts = []
        for choice in config.choices():
            part = choice.open(collect)
            if isinstance(part, Columns):
                part = config.with_bounds(open_files.enter_context(part))
            parts.append(part)
        build = Build(
            parts,
            [choice.weight for choice in config.datasets],
            spaces,
            extras=extras,
            transform=lambda dataset: config.transform(dataset, in_place=True),
        )
        if budgets is None:
            return build.into(allocate_rows(build.name, *build.shape))
        room = budgets.on_host()
        # The files may have been downloaded just now.
        packed_file = packed_file or _packed_file(config, spaces, extras, budgets)
        if build.nbytes <= room or packed_file is None:
            return build.into(allocate_rows(build.name, *build.shape, memory_limit=room))
        return unpacked(packed_file.make(build.shape, build.contents, room), _name(config), spaces, budgets, extras)


def spaces_of_data(config: DatasetConfig) -> SpaceSpec | None:
    """The spaces of data that need no environment, without loading their rows; None if their bounds are unknown."""
    found = config.choices()[0].open(None)
    assert isinstance(found, Columns), "data are collected in an environment"
    with found:
        columns = config.with_bounds(found)
        return declared_spaces(columns) or counted_spaces(columns)


def _packed_file(
    config: DatasetConfig, spaces: SpaceSpec | None, extras: tuple[Column, ...], budgets: MemoryBudget
) -> PackedFile | None:
    """The packed file of these data and settings; None if some of the data are collected."""
    files = [choice.files() for choice in config.choices()]
    if not all(files):
        return None
    settings = config.identity() | {
        "spaces": None if spaces is None else spaces.record(),
        "next_actions": NEXT_ACTIONS in extras,
    }
    if others := {column.name: column.bound for column in extras if column != NEXT_ACTIONS}:
        settings |= {"extras": others}
    return PackedFile.of([file for some in files for file in some], settings, budgets.spare)


def _name(config: DatasetConfig) -> str:
    """The name of a data set from files."""
    return " + ".join(str(choice.files()[0]) for choice in config.choices())
