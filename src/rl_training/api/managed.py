"""`ManagedAlgorithm`: what every class that a user trains with can do."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import TypeVar

from rl_training.api.describing import WhenAsked, documented, signature_of
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import kind_of
from rl_training.environments.making import spaces_of
from rl_training.environments.user_environments import Env, UserEnvironments, resolve_env
from rl_training.environments.wrapping import name_wrappers
from rl_training.errors import ConfigError, nearest
from rl_training.experiment.checkpointing import checkpoint_errors
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger, as_loggers
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec, resolve
from rl_training.export.writing import Exported, export_checkpoint
from rl_training.runs.callbacks import Callback, as_callbacks
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.spec import RunOptions
from rl_training.runs.state import config_of
from rl_training.runtime.loading import (
    LoadedPolicy,
    LoadedValues,
    Values,
    load_policy,
    load_values,
    open_checkpoint,
)
from rl_training.runtime.workflows import Recording, play_checkpoint, record_checkpoint

# An environment as people have it: a Gymnasium id, an object, its class, or a callable that makes one.
Environment = str | Env | type[Env] | Callable[..., Env]
Watcher = Callback | Callable[[Session], object]
Watchers = Watcher | Sequence[Watcher] | None
Loggers = Logger | Sequence[Logger] | None
Data = TransitionDataset | str | os.PathLike[str] | Mapping[str, Any] | None
# What a model was given as `seeds`: with several, `learn` returns a list.
Seeds = TypeVar("Seeds", bound=Sequence[int | float] | str | None, default=None, covariant=True)
# What a class does not ask for, though a configuration must say it.
_DEFAULTS: dict[str, Any] = {"total_timesteps": 10_000}
# The keys of `algo_kwargs` that say where data come from; a file given to `learn` takes the place of them all.
_DATA_KEYS = ("dataset_kind", "dataset_path", "dataset_id", "datasets")


def _signature(cls: type[ManagedAlgorithm]) -> inspect.Signature:
    return signature_of(cls.__init__, get_algorithm_spec(cls.algo), _DEFAULTS)


def _documentation(cls: type[ManagedAlgorithm], text: str | None) -> str:
    spec = get_algorithm_spec(cls.algo)
    return documented(text or spec.title, spec, _DEFAULTS)


class ManagedAlgorithm(Generic[Seeds]):
    """Learn, evaluate, predict, resume.

    Made from an environment and any `TrainConfig` field or `algo_kwargs` key, or from a `TrainConfig`. The
    environment is a Gymnasium id, an object, its class, or a callable that makes one; None trains on data alone. An
    object that cannot be made again trains alone and is evaluated only in `eval_env`.
    """

    algo: ClassVar[str]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **options: Any) -> None:
        """Spell out the settings, as far as the algorithm is registered, for `help` and for editors."""
        super().__init_subclass__(**options)
        if getattr(cls, "algo", None) in algorithm_names():
            text = cls.__dict__.get("__doc__")
            cls.__signature__ = WhenAsked(_signature)  # type: ignore[assignment]
            cls.__doc__ = WhenAsked(lambda own: _documentation(own, text))  # type: ignore[assignment]

    def __repr__(self) -> str:
        """`SAC('Pendulum-v1', seed=1): trained 5,000 steps, runs/…`, with the settings that are no defaults."""
        config, spec = self.config, get_algorithm_spec(self.algo)
        usual = TrainConfig(algo=self.algo, env_id=config.env_id, **_DEFAULTS).to_dict()
        given = {key: value for key, value in config.to_dict().items() if value != usual[key]}
        given.pop("total_timesteps", None)
        defaults = spec.sections.resolve({}).to_dict()
        given |= {key: value for key, value in given.pop("algo_kwargs", {}).items() if value != defaults[key]}
        settings = "".join(f", {key}={value!r}" for key, value in given.items())
        head = f"{type(self).__name__}({config.env_id!r}{settings})"
        if self.checkpoint_path is None:
            return f"{head}: not trained"
        unit = "updates" if spec.regime == "offline" else "steps"
        place = self.checkpoint_path.parent
        home = place.parent if place.name in ("checkpoints", "best") else place  # a published policy has no run
        return f"{head}: trained {self._steps:,} {unit}, {home}"

    def __init__(self, env: Environment | TrainConfig | None = None, **settings: Any) -> None:
        self._given = UserEnvironments()
        if isinstance(env, TrainConfig):
            self.config = env
            if settings:
                raise ConfigError(f"give either a TrainConfig or settings, not both: {next(iter(settings))!r}")
        else:
            self.config, self._given = self._configure(env, settings)
        if self.config.algo != self.algo:
            raise ConfigError(
                f"algo: {type(self).__name__} cannot run a config for {self.config.algo!r}", key="algo"
            )
        resolve(self.config)
        self.checkpoint_path: Path | None = None
        self._steps, self._budget = 0, self.config.total_timesteps
        self._dataset: TransitionDataset | None = None
        self._loaded: LoadedPolicy | None = None
        self._values: LoadedValues | None = None
        # One model per seed, of a population that is trained.
        self.members: list[ManagedAlgorithm] = []

    @classmethod
    def _configure(cls, env: Environment | None, settings: dict[str, Any]) -> tuple[TrainConfig, UserEnvironments]:
        """The plain configuration, and the environments that no configuration can hold."""
        train, judge = resolve_env(env), resolve_env(settings.get("eval_env"), "eval_env")
        if train.maker is not None and train.kwargs:
            _require_unmade(settings.get("env_kwargs"))
        brought: dict[str, Any] = {"env_kwargs": dict(train.kwargs)} if train.kwargs else {}
        if judge.name is not None:
            brought["eval_env"] = judge.name
        if names := [key for key, one in (("env_id", train), ("eval_env", judge)) if not one.by_name]:
            brought["given_envs"] = names
        wrappers, own = name_wrappers(settings.get("wrappers", ()))
        config = cls._config(train.name, settings | brought | {"wrappers": wrappers})
        return config, UserEnvironments(train.maker, judge.maker, own)

    @classmethod
    def _config(cls, env_id: str | None, settings: dict[str, Any]) -> TrainConfig:
        """Split keywords between `TrainConfig` and `algo_kwargs` by owner; NumPy scalars become Python numbers."""
        settings = {
            key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()
        }
        if env_id is not None and "env_id" in settings:
            raise ConfigError(
                f"env_id: given twice, {env_id!r} and {settings['env_id']!r}; leave one out", key="env_id"
            )
        if settings.get("seed") is not None and settings.get("seeds") is not None:
            raise ConfigError("seeds: give seed or seeds", key="seeds")
        owned = get_algorithm_spec(cls.algo).sections.owners()
        fields = {key: value for key, value in settings.items() if TrainConfig.has(key)}
        extra = {key: value for key, value in settings.items() if key not in fields}
        for key in extra:
            if key not in owned:
                known = [*TrainConfig.model_fields, *owned]
                raise ConfigError(f"{cls.__name__}: unknown setting {key!r}{nearest(key, known)}", key=key)
        fields["algo_kwargs"] = {**fields.get("algo_kwargs", {}), **extra}
        return TrainConfig(**{"algo": cls.algo, "env_id": env_id, **_DEFAULTS, **fields})

    @overload
    def learn(
        self: ManagedAlgorithm[None],
        total_timesteps: int | None = None,
        callbacks: Watchers = None,
        progress_bar: bool = True,
        *,
        dataset: Data = None,
        run_suffix: str | None = None,
        loggers: Loggers = None,
    ) -> TrainResult: ...

    @overload
    def learn(
        self: ManagedAlgorithm[Sequence[int | float] | str],
        total_timesteps: int | None = None,
        callbacks: Watchers = None,
        progress_bar: bool = True,
        *,
        dataset: Data = None,
        run_suffix: str | None = None,
        loggers: Loggers = None,
    ) -> list[TrainResult]: ...

    def learn(
        self,
        total_timesteps: int | None = None,
        callbacks: Watchers = None,
        progress_bar: bool = True,
        *,
        dataset: Data = None,
        run_suffix: str | None = None,
        loggers: Loggers = None,
    ) -> TrainResult | list[TrainResult]:
        """Train in a new run folder; offline, `total_timesteps` counts gradient updates.

        Called again, or on a loaded model, it makes `total_timesteps` more in the same folder, with the same
        settings; early stopping that ended the run holds until the new total exceeds the old one. To start anew,
        make a new model.

        `callbacks`: a `Callback`, a function that is called with the session after each step, or a list of such.
        `dataset`: a `TransitionDataset`, a file or Minari id, or a mapping of the arrays `from_arrays` takes.
        `loggers`: a `Logger` or a list of such, which get the rows of metrics too.

        With `seeds` the result is a list of `TrainResult`, one per seed in order, and `members` are the models.
        """
        steps = self._budget if total_timesteps is None else total_timesteps
        if self.checkpoint_path is not None:
            if run_suffix is not None:
                raise ConfigError(
                    f"run_suffix: {type(self).__name__} goes on in the folder it has; a new model gets a new one"
                )
            return self.resume(  # type: ignore[misc]  # of one run or of several, as this model is
                self._steps + steps, callbacks, progress_bar, dataset=dataset, loggers=loggers
            )
        watching, config = as_callbacks(callbacks), self.config.replace(total_timesteps=steps)
        options = RunOptions(quiet=not progress_bar, loggers=as_loggers(loggers))
        self.config, self._dataset = self._with_data(config.with_seed(), dataset)
        results = ExperimentManager().train_all(
            self.config,
            run_suffix=run_suffix,
            callbacks=watching,
            dataset=self._dataset,
            given=self._given,
            options=options,
        )
        return self._trained(results)

    @overload
    def resume(
        self: ManagedAlgorithm[None],
        total_timesteps: int | None = None,
        callbacks: Watchers = None,
        progress_bar: bool = True,
        *,
        dataset: Data = None,
        env: Environment | None = None,
        eval_env: Environment | None = None,
        loggers: Loggers = None,
    ) -> TrainResult: ...

    @overload
    def resume(
        self: ManagedAlgorithm[Sequence[int | float] | str],
        total_timesteps: int | None = None,
        callbacks: Watchers = None,
        progress_bar: bool = True,
        *,
        dataset: Data = None,
        env: Environment | None = None,
        eval_env: Environment | None = None,
        loggers: Loggers = None,
    ) -> list[TrainResult]: ...

    def resume(
        self,
        total_timesteps: int | None = None,
        callbacks: Watchers = None,
        progress_bar: bool = True,
        *,
        dataset: Data = None,
        env: Environment | None = None,
        eval_env: Environment | None = None,
        loggers: Loggers = None,
    ) -> TrainResult | list[TrainResult]:
        """Go on from the last checkpoint, to a larger `total_timesteps` if given; data in memory are remembered.

        A member of a population goes on with all the others.

        `env` and `eval_env` bring back environments that were given as objects.
        """
        path, watching = self._checkpoint(), as_callbacks(callbacks)
        changes: dict[str, Any] = {} if total_timesteps is None else {"total_timesteps": total_timesteps}
        changes |= self._bring(env, eval_env)
        self.config, data = self._with_data(self.config.replace(**changes), dataset)
        self._dataset = self._dataset if dataset is None else data
        changes["allow_import"] = self.config.allow_import
        if dataset is not None and data is None:
            changes["algo_kwargs"] = self.config.algo_kwargs
        results = ExperimentManager().resume_all(
            path,
            changes=changes,
            callbacks=watching,
            dataset=self._dataset,
            given=self._given,
            loggers=as_loggers(loggers),
            quiet=not progress_bar,
        )
        return self._trained(results)

    def _with_data(self, config: TrainConfig, given: Data) -> tuple[TrainConfig, TransitionDataset | None]:
        """The settings that name a file of data, or the data in memory, of whatever a user gives as `dataset`."""
        if given is None or isinstance(given, TransitionDataset):
            return config, given
        if "dataset_kind" not in get_algorithm_spec(self.algo).sections.owners():
            raise ConfigError(f"dataset: {self.algo} learns from an environment alone; use rlpd to mix in data")
        if isinstance(given, Mapping):
            return config, _from_mapping(given, config, self._given)
        if not isinstance(given, str | os.PathLike):
            raise ConfigError(
                "dataset: give a TransitionDataset, a file (.npz, .hdf5), a Minari id or a mapping of arrays, "
                f"got {type(given).__name__}"
            )
        kept = {key: value for key, value in config.algo_kwargs.items() if key not in _DATA_KEYS}
        kind = kind_of(given)
        place = {"dataset_id" if kind == "minari" else "dataset_path": os.fspath(given)}
        config = config.replace(algo_kwargs={**kept, "dataset_kind": kind, **place})
        resolve(config)
        return config, None

    def evaluate(self, num_episodes: int | None = None, deterministic: bool = True) -> dict[str, Any]:
        """Mean return and its companions over fixed seeds, and `returns` and `lengths` of the episodes.

        Without `deterministic` a stochastic policy is sampled, with noise that is fixed too.
        """
        self._require_one("evaluate")
        changes = self._environments() | {"allow_import": self.config.allow_import}
        metrics, played = play_checkpoint(
            self._checkpoint(), num_episodes, deterministic=deterministic, changes=changes, given=self._given
        )
        return {**metrics, **played.episodes()}

    def record(
        self,
        path: str | Path,
        num_episodes: int = 1,
        deterministic: bool = True,
        *,
        seed: int | None = None,
        fps: float | None = None,
        max_steps: int | None = None,
    ) -> Recording:
        """Film the policy into a new `.mp4` or `.gif` file.

        What is played are the first episodes of an evaluation, or those of another `seed`. `fps` is by
        default what the environment says of itself; `max_steps` cuts episodes. An environment that was given as an
        object must have been made with `render_mode="rgb_array"`.
        """
        self._require_one("record")
        changes = self._environments() | {"allow_import": self.config.allow_import}
        return record_checkpoint(
            self._checkpoint(),
            path,
            num_episodes,
            seed=seed,
            fps=fps,
            max_steps=max_steps,
            deterministic=deterministic,
            changes=changes,
            given=self._given,
        )

    def predict(self, obs: ArrayLike, deterministic: bool = True) -> NDArray[Any]:
        """The action in the environment's units, for one observation or a batch."""
        self._require_one("predict")
        if self._loaded is None:
            self._loaded = load_policy(open_checkpoint(self._checkpoint()))
        return self._loaded.predict(obs, deterministic=deterministic)

    def predict_value(self, obs: ArrayLike, action: ArrayLike | None = None) -> Values:
        """What the critics expect: Q of `action`, in the environment's units, or without one the value of `obs`.

        `mean` and `spread` over the critics, for one observation or a batch, or one observation and a batch of
        actions. docs/export.md tells what V is for each algorithm; BC has no critics.
        """
        self._require_one("predict_value")
        if self._values is None:
            self._values = load_values(open_checkpoint(self._checkpoint()))
        return self._values.predict(obs, action)

    def export(self, path: str | Path, deterministic: bool = True) -> Exported:
        """Write the policy as a new `.onnx` or `.npz` file that needs neither this package nor torch.

        Normalisation and the action's scaling are inside. It is compared with `predict` first; where they differ,
        nothing is written. Without `deterministic` a stochastic policy takes `noise` as a second input.
        """
        self._require_one("export")
        return export_checkpoint(self._checkpoint(), path, deterministic=deterministic, dataset=self._dataset)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        env: Environment | None = None,
        eval_env: Environment | None = None,
        wrappers: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """A trained algorithm from a checkpoint or run folder; neither environment nor data are needed.

        `env`, `eval_env` and `wrappers` bring back what was given as objects, to evaluate in and to go on with.
        `env_kwargs` replace those of the run, which are otherwise passed to `env`.
        `ManagedAlgorithm.load` and `rl_training.load` find the class that trained it.
        """
        checkpoint = open_checkpoint(path)
        config = config_of(checkpoint)
        model = (_class_of(config.algo) if cls is ManagedAlgorithm else cls)(config)
        assert isinstance(model, cls)
        model.checkpoint_path = checkpoint.path
        with checkpoint_errors(checkpoint):
            model._steps = int(checkpoint.records["trainer"]["clock"]["global_step"])
        model._loaded = load_policy(checkpoint)
        model._bring(env, eval_env, wrappers, env_kwargs)
        return model

    def _bring(
        self,
        env: Environment | None,
        eval_env: Environment | None,
        wrappers: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Take up environments in place of those in the configuration; returns the fields that name them."""
        given: set[str] = set(self.config.given_envs)
        makers = {"env_id": self._given.env, "eval_env": self._given.eval_env}
        fields: dict[str, Any] = {} if env_kwargs is None else {"env_kwargs": dict(env_kwargs)}
        for key, value in (("env_id", env), ("eval_env", eval_env)):
            if value is not None:
                brought = resolve_env(value, key)
                fields[key], makers[key] = brought.name, brought.maker
                given = given - {key} if brought.by_name else given | {key}
                if key == "env_id" and brought.kwargs:
                    _require_unmade(env_kwargs)
                    fields["env_kwargs"] = dict(brought.kwargs)
        own = self._given.wrappers
        if wrappers is not None:
            fields["wrappers"], own = name_wrappers(wrappers)
        self.config = self.config.replace(**fields, given_envs=sorted(given))
        self._given = UserEnvironments(makers["env_id"], makers["eval_env"], own)
        return self._environments()

    def _environments(self) -> dict[str, Any]:
        """The fields of the configuration that name environments."""
        keys = ("env_id", "env_kwargs", "eval_env", "given_envs", "wrappers")
        return {key: value for key, value in self.config.to_dict().items() if key in keys}

    def _trained(self, results: Sequence[TrainResult]) -> TrainResult | list[TrainResult]:
        """Remember where the run lies, or those of a population; returns its result, or theirs."""
        if self.config.seeds is not None:
            self.members = [self._member(seed, result) for seed, result in zip(self.config.seeds, results)]
            self._steps = max(member._steps for member in self.members)
            self.checkpoint_path = self.members[0].checkpoint_path
            return list(results)
        own = None if self.checkpoint_path is None else self.checkpoint_path.parent.parent
        result = next((one for one in results if one.run_dir == own), results[0])
        self.checkpoint_path, self._loaded, self._values = result.checkpoint_path, None, None
        self._steps = int(result.metrics["global_step"])
        return result

    def _member(self, seed: int, result: TrainResult) -> ManagedAlgorithm:
        member: ManagedAlgorithm[Any] = type(self)(self.config.replace(seed=seed, seeds=None))
        member._given, member._dataset = self._given, self._dataset
        member._trained([result])
        return member

    def _require_one(self, what: str) -> None:
        if self.config.seeds is not None:
            count = len(self.config.seeds)
            raise ConfigError(f"{type(self).__name__} has {count} members; {what} one: model.members[0].{what}(…)")

    def _checkpoint(self) -> Path:
        if self.checkpoint_path is None:
            raise ConfigError(f"{type(self).__name__} is not trained yet: call learn() or load() first")
        return self.checkpoint_path


def load(
    path: str | Path,
    *,
    env: Environment | None = None,
    eval_env: Environment | None = None,
    wrappers: Sequence[Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> ManagedAlgorithm:
    """A trained model from any run folder or checkpoint, whichever algorithm trained it."""
    return ManagedAlgorithm.load(path, env=env, eval_env=eval_env, wrappers=wrappers, env_kwargs=env_kwargs)


def _require_unmade(env_kwargs: Mapping[str, Any] | None) -> None:
    if env_kwargs:
        raise ConfigError("env_kwargs: the environment is made already; give its id or its class", key="env_kwargs")


def _class_of(algo: str) -> type[ManagedAlgorithm[Any]]:
    for managed in ManagedAlgorithm.__subclasses__():
        if managed.algo == algo:
            return managed
    raise ConfigError(f"algo: no class trains {algo!r}; define one, derived from ManagedAlgorithm", key="algo")


def _from_mapping(arrays: Mapping[str, Any], config: TrainConfig, brought: UserEnvironments) -> TransitionDataset:
    """Arrays by the names of `from_arrays`; an environment or the settings tell the action bounds they lack."""
    parameters = inspect.signature(TransitionDataset.from_arrays).parameters
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    for name in arrays:
        if name not in parameters:
            hint = nearest(str(name), parameters) or f"; known: {', '.join(parameters)}"
            raise ConfigError(f"dataset: unknown key {name!r}{hint}")
    if missing := [name for name in needed if name not in arrays]:
        raise ConfigError(f"dataset: {missing[0]!r} is missing; needed: {', '.join(needed)}")
    if config.env_id is None:
        known = {name: config.algo_kwargs.get(name) for name in ("action_low", "action_high", "num_actions")}
    else:
        known = {"spaces": spaces_of(config, given=brought)}
    return TransitionDataset.from_arrays(**{**known, **arrays})
