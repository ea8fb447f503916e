"""`TrainConfig`, and reading it from strict YAML with command-line overrides.

`TrainConfig` checks its own fields. `algo_kwargs` is one flat mapping whose keys belong to sections that live
beside the code using them; the registry checks those, and `LoadedConfig.explain` adds the line to its errors.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from rl_training.errors import ConfigError
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.settings import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    describe,
    list_as_tuple,
    nearest,
)

_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
# A packaged config by the path it has in a checkout of this package.
_CHECKOUT = re.compile(r"(?:.*/)?configs/([^/]+/[^/]+)\.yaml")


def normalise_algo(name: str) -> str:
    """Registry spelling of an algorithm: `TD3+BC` and `td3-bc` are `td3_bc`."""
    return name.strip().lower().replace("+", "_").replace("-", "_")


def _plain(value: Any) -> Any:
    """A copy of only such values as YAML can hold; a path becomes a string, a tuple a list."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"keys must be strings, got {key!r}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"numbers must be finite, got {value!r}")
        return float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError(f"only numbers, strings, booleans, lists and mappings can be stored, got {value!r}")


def _wrapper_list(value: Any) -> Any:
    """Wrappers as plain data: each a name, or one name with its arguments."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list, got {value!r}")
    for entry in value:
        one_name = isinstance(entry, Mapping) and len(entry) == 1 and all(isinstance(key, str) for key in entry)
        if not (isinstance(entry, str) and entry) and not (
            one_name and all(arguments is None or isinstance(arguments, Mapping) for arguments in entry.values())
        ):
            raise ValueError(f"each must be a name or {{name: {{argument: value}}}}, got {entry!r}")
    return tuple(_plain(value))


def _path_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def _known_device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError(f"must be auto, cpu, cuda or cuda:N, got {value!r}")
    return value


Text = Annotated[str, Field(min_length=1)]
PlainMapping = Annotated[dict[str, Any], BeforeValidator(_plain)]


class TrainConfig(Settings):
    """Everything a run is made of; two equal configs describe the same run."""

    algo: Annotated[Text, AfterValidator(normalise_algo)]
    """algorithm; case, `+` and `-` do not matter"""
    env_id: Text | None
    """Gymnasium id; null trains on data alone (offline algorithms)"""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = 0
    """null draws one and records it"""
    total_timesteps: PositiveInt
    """environment steps; offline, gradient updates"""
    output_dir: Annotated[Text, BeforeValidator(_path_as_text)] = "runs"
    """folder that receives the run folder"""
    device: Annotated[str, AfterValidator(_known_device)] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the first GPU if there is one"""
    num_envs: PositiveInt = 1
    """environments stepped together; intervals count the steps of all of them"""
    eval_episodes: NonNegativeInt = 5
    """episodes of each evaluation; 0 switches evaluation off"""
    eval_env: Text | None = None
    """Gymnasium id of another environment to evaluate in, without `env_kwargs`; null evaluates in `env_id`"""
    eval_max_steps: PositiveInt | None = None
    """bound of an evaluation episode; null: the environment's own limit, or 10,000 where it has none"""
    log_interval: PositiveInt = 1_000
    """ticks of the clock between rows of `metrics.csv` and TensorBoard"""
    checkpoint_interval: PositiveInt = 10_000
    """ticks of the clock between checkpoints"""
    keep_checkpoints: PositiveInt = 3
    """how many of the newest stay on disk (`best/` is kept besides)"""
    tags: Annotated[tuple[str, ...], BeforeValidator(list_as_tuple)] = ()
    """free words, recorded with the run"""
    algo_kwargs: PlainMapping = Field(default_factory=dict)
    """the settings listed in the sections below"""
    env_kwargs: PlainMapping = Field(default_factory=dict)
    """passed to `gymnasium.make`"""
    wrappers: Annotated[tuple[Any, ...], BeforeValidator(_wrapper_list)] = ()
    """around each environment, the first one innermost: Gymnasium's by name, as `ClipAction` or `RescaleAction:
    {min_action: -1, max_action: 1}`; one's own as `module:Class` of the module in `env_id`, with
    --allow-import"""
    given_envs: Annotated[tuple[Literal["env_id", "eval_env"], ...], BeforeValidator(list_as_tuple)] = ()
    """which of these were brought as objects in Python: their names alone do not make them again"""
    init_from: Annotated[Text, BeforeValidator(_path_as_text)] | None = None
    """checkpoint whose networks the run starts from"""
    allow_import: bool = False
    """permit an `env_id` of the form `module:Env`, which imports that module, and wrappers `module:Class`"""
    env_processes: bool = False
    """each environment in a process of its own, which may die or hang without harm"""
    env_timeout: PositiveFloat = 60.0
    """seconds after which such an environment counts as hung"""
    acceleration: Literal["auto", "eager", "compile", "graph"] = "auto"
    """how updates run; `auto` is `compile` on a GPU and `eager` on a CPU"""
    tf32: bool = False
    """TF32 matrix products on a GPU: faster, 10 bits of mantissa"""

    if not TYPE_CHECKING:  # a type checker should see the fields as parameters

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                path = ".".join(str(part) for part in error.errors()[0]["loc"])
                raise ConfigError(describe(error, type(self).model_fields), key=path) from None

    @classmethod
    def parse(cls, values: Mapping[str, Any], place: str = "") -> Self:
        try:
            return cls(**values)
        except ConfigError as error:
            if not place:
                raise
            raise ConfigError(f"{place}: {error}", key=f"{place}.{error.key}") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `TrainConfig(**data)` and YAML accept."""
        return {name: _plain(getattr(self, name)) for name in type(self).model_fields}

    def replace(self, **changes: Any) -> Self:
        """A checked copy with some fields changed."""
        return type(self)(**{**self.to_dict(), **changes})

    def with_overrides(self, overrides: Sequence[str]) -> Self:
        """A checked copy with some settings changed by `dotted.key=value`."""
        values = self.to_dict()
        for override in overrides:
            _apply_override(override, values)
        try:
            return type(self)(**values)
        except ConfigError as error:
            raise ConfigError(f"--set: {error}", key=error.key) from None

    def with_seed(self) -> Self:
        """This config, with a seed drawn from the operating system where it was None."""
        return self if self.seed is not None else self.replace(seed=secrets.randbelow(2**31))


@dataclass(frozen=True)
class LoadedConfig:
    """A config, the text it was read from, and where each setting came from; `note` is a remark for the user."""

    config: TrainConfig
    text: str
    place: str
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    note: str | None = None

    def locate(self, dotted: str) -> str:
        """`file:line` of a setting, or of the nearest one above it; `--set` where an override gave it."""
        return _locate(dotted, self.place, self.lines, self.overridden)

    def explain(self, error: ConfigError) -> ConfigError:
        """The same error with the place of the setting it blames in front."""
        return _explain(error, self.place, self.lines, self.overridden)


def _locate(dotted: str, place: str, lines: Mapping[str, int], overridden: frozenset[str]) -> str:
    while dotted:
        if dotted in overridden:
            return "--set"
        if dotted in lines:
            return f"{place}:{lines[dotted]}"
        dotted = dotted.rpartition(".")[0]
    return place


def _explain(error: ConfigError, place: str, lines: Mapping[str, int], overridden: frozenset[str]) -> ConfigError:
    where = _locate(error.key or "", place, lines, overridden)
    return type(error)(f"{where}: {error}", key=error.key)


def packaged_configs() -> list[str]:
    """Names of the configs that come with the package, as `<algo>/<name>`."""
    root = resources.files("rl_training").joinpath("assets", "configs")
    if not root.is_dir():
        return []
    return sorted(
        f"{folder.name}/{item.name.removesuffix('.yaml')}"
        for folder in root.iterdir()
        if folder.is_dir()
        for item in folder.iterdir()
        if item.name.endswith(".yaml")
    )


def _read_source(source: str | Path) -> tuple[str, str, str | None]:
    """Text and display name of a config: a file first, else a packaged one, which may need a remark.

    `configs/<algo>/<name>.yaml`, the path in a checkout of this package, means the packaged one anywhere else.
    """
    path = Path(source)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8"), str(source), None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start}); is this a config file?") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
    names, checkout = packaged_configs(), _CHECKOUT.fullmatch(path.as_posix())
    note = None
    if checkout is not None and (packaged := _packaged_name(checkout[1])) in names:
        note = f"{source}: no such file; using the packaged {packaged}"
    elif (packaged := _packaged_name(str(source))) not in names:
        raise ConfigError(
            f"{source}: no such file and no packaged config{nearest(packaged, names)}"
            " (`rl-training configs` lists them)"
        )
    item = resources.files("rl_training").joinpath("assets", "configs", *f"{packaged}.yaml".split("/"))
    return item.read_text(encoding="utf-8"), f"{packaged}.yaml", note


def _packaged_name(text: str) -> str:
    algo, _, name = text.partition("/")
    return f"{normalise_algo(algo)}/{name}"


def _apply_override(override: str, values: dict[str, Any]) -> str:
    """Set one `dotted.key=value` in `values`; returns the dotted key."""
    dotted, equals, text = override.partition("=")
    dotted = dotted.strip()
    parts = dotted.split(".")
    if not equals or not all(parts) or not text.strip():
        raise ConfigError(f"--set {override}: write key=value, for example --set algo_kwargs.batch_size=64")
    value = parse_yaml(text, f"--set {dotted}").value
    target = values
    for depth, part in enumerate(parts[:-1], start=1):
        if target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, dict):
            above = ".".join(parts[:depth])
            raise ConfigError(f"--set {dotted}: {above} is not a mapping; set {above} as a whole", key=dotted)
    target[parts[-1]] = value
    return dotted


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a config file, or a packaged one named `<algo>/<name>`, and apply `key=value` overrides."""
    text, place, note = _read_source(source)
    document = parse_yaml(text, place)
    values = document.value
    if not isinstance(values, dict):
        found = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(
            f"{place}: a config is a mapping with at least algo, env_id and total_timesteps, got {found}"
        )
    lines, overridden = document.lines, set[str]()
    if values.get("allow_import"):
        raise ConfigError(
            f"{place}:{lines['allow_import']}: allow_import cannot be switched on by a file, which could then name "
            "code to run; use --allow-import",
            key="allow_import",
        )
    for override in overrides:
        dotted = _apply_override(override, values)
        lines = {key: n for key, n in lines.items() if key != dotted and not key.startswith(f"{dotted}.")}
        overridden.add(dotted)
    try:
        config = TrainConfig.parse(values)
    except ConfigError as error:
        raise _explain(error, place, lines, frozenset(overridden)) from None
    return LoadedConfig(config, text, place, lines, frozenset(overridden), note)
