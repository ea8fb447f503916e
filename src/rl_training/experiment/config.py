"""`TrainConfig`, and reading it from strict YAML with command-line overrides.

`TrainConfig` validates its own fields. `algo_kwargs` is one flat mapping whose keys belong to sections, each
defined in the module that uses it. The registry validates those; `LoadedConfig.explain` adds the line to errors.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from rl_training.errors import ConfigError, nearest, setting_hint
from rl_training.experiment.config_values import (
    OLDER,
    REMOVED,
    current_names,
    known_device,
    normalise_algo,
    plain,
    underscored,
    wrapper_list,
)
from rl_training.experiment.files import os_errors
from rl_training.experiment.loggers import known_loggers
from rl_training.experiment.strict_yaml import dump_yaml, explain, parse_yaml, read_text
from rl_training.importing import installed_algorithms
from rl_training.settings import (
    ByteSize,
    Evaluation,
    NonNegativeInt,
    PathText,
    PerRun,
    Place,
    PositiveFloat,
    PositiveInt,
    Result,
    Score,
    Settings,
    Watching,
    WholeNumber,
    at_home,
    describe,
    seed_list,
)

CONFIGS = Path(str(resources.files("rl_training"))) / "assets" / "configs"
# Path of a packaged config in a checkout of this package.
_CHECKOUT = re.compile(r"(?:.*/)?configs/([^/]+/[^/]+)\.yaml")
_STARTERS = ("pendulum", "cartpole")
_SAME = {OLDER: "environments", "environments": OLDER}
_FLAGS = {"env_id": "--env", "total_timesteps": "--steps"}

Owners = Callable[[Mapping[str, Any]], Collection[str]]
"""returns the keys of `algo_kwargs` for the fields of a config; see `registry.setting_names`"""
Text = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32), WholeNumber]
PlainMapping = Annotated[dict[str, Any], BeforeValidator(plain)]


class TrainConfig(Settings):
    """All settings of a run; two equal configs describe the same run."""

    algo: Result[Annotated[Text, AfterValidator(normalise_algo)]]
    """name of the algorithm, in any case; your own as `module:Class`, with `--allow-import`"""
    env_id: Score[Text | None]
    """Gymnasium id; null trains on data alone (offline algorithms)"""
    seed: PerRun[Seed | None] = 0
    """seed of the run; null draws one and records it"""
    seeds: PerRun[Annotated[tuple[int, ...], BeforeValidator(seed_list)] | None] = None
    """several runs at once, one per seed: a list, `0..9` or `0,3,7`; replaces `seed`"""
    total_timesteps: Result[PositiveInt]
    """environment steps; offline, gradient updates"""
    regime: Result[
        Annotated[Literal["online", "offline", "offline_to_online"], BeforeValidator(underscored)] | None
    ] = None
    """`offline_to_online`: an offline algorithm continues in the environment, with its own update; null: the
    algorithm's usual one"""
    output_dir: PerRun[Annotated[PathText, Field(min_length=1)]] = "runs"
    """folder in which the run folder is created"""
    device: Place[Annotated[str, AfterValidator(known_device)]] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the first GPU if there is one"""
    num_envs: Result[PositiveInt] = 1
    """environments stepped together; intervals count the steps of all of them"""
    eval_episodes: Result[Evaluation[NonNegativeInt]] = 5
    """episodes per evaluation; 0 disables evaluation"""
    eval_env: Score[Text | None] = None
    """Gymnasium id of another environment for evaluation, without `env_kwargs`; null evaluates in `env_id`"""
    eval_max_steps: Score[PositiveInt | None] = None
    """maximum steps of an evaluation episode; null: the environment's own limit, or 10,000 if it has none"""
    log_interval: Watching[PositiveInt] = 1_000
    """environment steps (offline: updates) between rows of `metrics.csv` and TensorBoard"""
    checkpoint_interval: Watching[PositiveInt] = 10_000
    """environment steps (offline: updates) between checkpoints"""
    keep_checkpoints: Place[PositiveInt] = 3
    """number of newest checkpoints to keep, in addition to `best/`"""
    loggers: Place[Annotated[tuple[str, ...], BeforeValidator(known_loggers)]] = ()
    """additional loggers: `wandb` (Weights & Biases), or your own as `module:Class`, with `--allow-import`"""
    tags: PerRun[tuple[str, ...]] = ()
    """labels that are recorded with the run"""
    algo_kwargs: Result[PlainMapping] = Field(default_factory=dict)
    """the settings listed in the sections below"""
    env_kwargs: Score[PlainMapping] = Field(default_factory=dict)
    """passed to `gymnasium.make`"""
    wrappers: Score[Annotated[tuple[Any, ...], BeforeValidator(wrapper_list)]] = ()
    """wrappers of each environment, the first one innermost: Gymnasium's by name, as `ClipAction` or
    `RescaleAction: {min_action: -1, max_action: 1}`; your own as `module:Class`, with `--allow-import`"""
    given_envs: Result[tuple[Literal["env_id", "eval_env"], ...]] = ()
    """which of these were passed as Python objects, which their names cannot create; set when a run starts"""
    init_from: Result[Annotated[PathText, Field(min_length=1)] | None] = None
    """checkpoint or run whose networks the run starts from; `{seed}` is replaced by the run's seed"""
    allow_import: Place[Evaluation[bool]] = False
    """permit settings that name your own code, `module:Env`, `module:Class` or `module:function`, to import it"""
    plugin: Place[Text | None] = None
    """`module:Class` of the learner if `algo` is not of this package; set when a run starts"""
    environments: Place[Evaluation[Literal["auto", "local", "batched", "processes", "ray"]]] = "auto"
    """where environments run. `local`: one after another in this process. `batched`: in this process, all in one
    call, with the same results (Gymnasium's MuJoCo environments without wrappers). `auto`: `batched` if it supports
    the environment, otherwise `local`. `processes`: each in its own process, so that a crash or hang does not end
    this one (also `env_processes: true`). `ray`: actors of the Ray cluster in RAY_ADDRESS, or of a new one on this
    machine"""
    env_threads: Place[Evaluation[PositiveInt | None]] = None
    """threads that step batched environments; null: OMP_NUM_THREADS if it is set, otherwise the available cores"""
    env_timeout: Place[Evaluation[PositiveFloat]] = 60.0
    """seconds after which an environment in another process is considered hung"""
    acceleration: Result[Literal["auto", "eager", "compile", "graph"]] = "auto"
    """how updates run; `auto` is `compile` on a GPU and `eager` on a CPU"""
    tf32: Result[bool] = False
    """TF32 matrix products on a GPU: faster, 10 bits of mantissa"""
    bf16: Result[bool] = False
    """bfloat16 products of layers with at least 128 inputs and outputs on a GPU: faster, 7 bits of mantissa"""
    device_memory: Place[ByteSize | None] = None
    """GPU memory for a data set, as `4GB`, `512MB` or bytes; null: most of the free memory; a larger data set stays
    in host memory, and its minibatches are prefetched"""
    host_memory: Place[ByteSize | None] = None
    """host memory for a data set; null: half of the free memory; a larger data set is packed once into a file next
    to the data, and its minibatches are prefetched"""
    population: PerRun[Literal["auto", "off"] | PositiveInt] = "auto"
    """maximum number of runs of `seeds` that are trained together; `auto`: as many as fit into memory; `off`: one
    after another"""

    if not TYPE_CHECKING:  # type checkers use the fields as parameters

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**current_names(values))
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

    @classmethod
    def has(cls, name: str) -> bool:
        """Whether `name` is a field, the old name of one, or a removed one that is still accepted."""
        return name in cls.model_fields or name in (OLDER, REMOVED)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `TrainConfig(**data)` and YAML accept."""
        return {name: plain(getattr(self, name)) for name in type(self).model_fields}

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        return type(self)(**{**self.to_dict(), **current_names(changes)})

    def with_overrides(self, overrides: Sequence[str], owners: Owners | None = None) -> Self:
        """A validated copy with `key=value` overrides; `owners` returns the keys of `algo_kwargs`."""
        values = self.to_dict()
        for override in overrides:
            _apply_override(override, values, owners)
        try:
            return type(self)(**values)
        except ConfigError as error:
            raise ConfigError(f"--set: {error}", key=error.key) from None

    @property
    def env_processes(self) -> bool:
        """The old name of `environments: processes`."""
        return self.environments == "processes"

    @property
    def in_this_process(self) -> bool:
        """Whether environments run in this process."""
        return self.environments not in ("processes", "ray")

    def permission(self, *, policy_alone: bool = False, default_network: str | None = None) -> str:
        """` --allow-import` if a command for this run needs it; `policy_alone`: it only loads the policy.

        `default_network` is that of the algorithm; an installed package imports it without permission.
        """
        network, installed = self.algo_kwargs.get("network"), self.algo in installed_algorithms()
        names = [] if installed else [self.plugin]
        names += [] if installed and network == default_network else [network]
        if not policy_alone:
            data = self.algo_kwargs, *self.algo_kwargs.get("datasets", ())
            wrappers = [name for one in self.wrappers for name in ((one,) if isinstance(one, str) else one)]
            kinds = [one.get("dataset_kind") for one in data]
            names += [self.env_id, self.eval_env, *kinds, *wrappers, *self.loggers]
        return " --allow-import" if any(":" in name for name in names if name) else ""

    def with_seed(self) -> Self:
        """This config; if its seed is None, with a random one."""
        return self if self.seed is not None else self.replace(seed=secrets.randbelow(2**31))


@dataclass(frozen=True)
class LoadedConfig:
    """A config, its text, and the origin of each setting; `note` is a message for the user.

    `place` is empty if no file was read.
    """

    config: TrainConfig
    text: str
    place: str
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: Mapping[str, str] = field(default_factory=dict)  # key -> the option that gave it
    note: str | None = None

    def explain(self, error: ConfigError) -> ConfigError:
        """The same error, preceded by the place of its setting."""
        return explain(error, self.place, self.lines, self.overridden)


def packaged_configs() -> list[str]:
    """Names of the packaged configs, as `<algo>/<name>`."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in CONFIGS.glob("*/*.yaml"))


def _read_source(source: str | Path) -> tuple[str, str, str | None]:
    """Text, display name and note of a config: a file, or else a packaged one.

    If the file `configs/<algo>/<name>.yaml`, a path in a checkout of this package, does not exist, the packaged
    config is used, with a note.
    """
    path = Path(at_home(str(source)))
    with os_errors(f"{source}: cannot be read"):
        if path.is_file():
            return read_text(path, str(source), "a config file"), str(source), None
    names, checkout = packaged_configs(), _CHECKOUT.fullmatch(path.as_posix())
    note = None
    if checkout is not None and (packaged := _packaged_name(checkout[1])) in names:
        note = f"{source}: no such file; using the packaged {packaged}"
    elif (packaged := _packaged_name(str(source))) not in names:
        raise ConfigError(
            f"{source}: no such file and no packaged config{_suggestion(packaged, names)}"
            " (`rl-training configs` lists them)"
        )
    return (CONFIGS / f"{packaged}.yaml").read_text(encoding="utf-8"), f"{packaged}.yaml", note


def _suggestion(packaged: str, names: Sequence[str]) -> str:
    """The most similar config; for the name of an algorithm, its starter config."""
    algo, _, name = packaged.partition("/")
    starters = [f"{algo}/{starter}" for starter in _STARTERS if f"{algo}/{starter}" in names]
    return f"; did you mean {starters[0]!r}?" if starters and not name else nearest(packaged, names)


def _packaged_name(text: str) -> str:
    algo, _, name = text.partition("/")
    return f"{normalise_algo(algo)}/{name}"


def _apply_override(override: str, values: dict[str, Any], owners: Owners | None) -> str:
    """Set one `key=value` in `values`; returns the dotted key."""
    dotted, equals, text = override.partition("=")
    dotted = dotted.strip()
    if not equals or not all(dotted.split(".")) or not text.strip():
        raise ConfigError(f"--set {override}: write key=value, for example --set batch_size=64")
    return put_setting(dotted, parse_yaml(text, f"--set {dotted}").value, values, owners)


def put_setting(
    dotted: str, value: Any, values: dict[str, Any], owners: Owners | None, given_by: str = "--set"
) -> str:
    """Set one key in `values` and return its dotted path; `algo_kwargs.` may be omitted.

    `given_by` starts the error message.
    """
    dotted = _place_of(dotted, values, owners, given_by)
    parts = dotted.split(".")
    target = values
    for depth, part in enumerate(parts[:-1], start=1):
        if target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, dict):
            above = ".".join(parts[:depth])
            raise ConfigError(f"{given_by} {dotted}: {above} is not a mapping; set {above} as a whole", key=dotted)
    target[parts[-1]] = value
    if isinstance(given := values.get("given_envs"), list):
        values["given_envs"] = [key for key in given if key != dotted]  # the new value is a name
    values.pop(_SAME.get(dotted, ""), None)
    return dotted


def _place_of(dotted: str, values: Mapping[str, Any], owners: Owners | None, given_by: str) -> str:
    """Prefix a key of the algorithm with `algo_kwargs.`; raises for an unknown key."""
    head, fields = dotted.partition(".")[0], TrainConfig.model_fields
    if TrainConfig.has(head) or owners is None or not isinstance(values.get("algo"), str):
        return dotted
    owned = owners(values)
    if head not in owned:
        raise ConfigError(f"{given_by}: unknown key {head!r}{setting_hint(head, [*fields, *owned])}", key=dotted)
    return f"algo_kwargs.{dotted}"


def load_config(
    source: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    options: Mapping[str, Any] | None = None,
    owners: Owners | None = None,
) -> LoadedConfig:
    """Read a config file, or a packaged one named `<algo>/<name>`, and apply `key=value` overrides.

    `options` are fields set by their own command-line options; they take precedence. `source` may be None if they
    and the overrides are complete. With `owners` an override may omit `algo_kwargs.`.
    """
    text, place, note, values, lines = _read_config(source)
    given = dict(options or {})
    values |= given
    overridden: dict[str, str] = {}
    for override in overrides:
        overridden[_apply_override(override, values, owners)] = "--set"
    values |= given
    overridden |= {name: _FLAGS.get(name, f"--{name.replace('_', '-')}") for name in given}
    lines = {key: n for key, n in lines.items() if not any(f"{key}.".startswith(f"{top}.") for top in overridden)}
    if source is None and "total_timesteps" not in values:
        raise ConfigError("total_timesteps is required: set it with --steps", key="total_timesteps")
    try:
        _choose_seeds(values, overridden)
        config = TrainConfig.parse(values)
    except ConfigError as error:
        raise explain(error, place, lines, overridden) from None
    text = text or dump_yaml({key: value for key, value in values.items() if key != "allow_import"})
    return LoadedConfig(config, text, place, lines, overridden, note)


def _choose_seeds(values: dict[str, Any], overridden: Mapping[str, str]) -> None:
    """If both `seed` and `seeds` are set, keep the one from the command line; raise if both are, or neither is."""
    if values.get("seed") is None or values.get("seeds") is None:
        return
    given = [key for key in ("seed", "seeds") if key in overridden]
    if len(given) != 1:
        raise ConfigError.of("seeds", "give seed or seeds, not both")
    del values["seeds" if given == ["seed"] else "seed"]


def _read_config(source: str | Path | None) -> tuple[str, str, str | None, dict[str, Any], Mapping[str, int]]:
    """Text, display name, note, values and lines of a config; defaults if `source` is None."""
    if source is None:
        return "", "", None, {"env_id": None}, {}
    text, place, note = _read_source(source)
    document = parse_yaml(text, place)
    values = document.value
    if not isinstance(values, dict):
        found = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(
            f"{place}: a config is a mapping with at least algo, env_id and total_timesteps, got {found}"
        )
    if values.get("allow_import"):
        raise ConfigError(
            f"{place}:{document.lines['allow_import']}: allow_import cannot be enabled in a file, which could then "
            "name code to run; use --allow-import",
            key="allow_import",
        )
    return text, place, note, values, document.lines
