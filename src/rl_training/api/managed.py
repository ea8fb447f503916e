"""`ManagedAlgorithm`: the base class of all classes that a user trains with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import TypeVar

from rl_training.api.data import Data, resolve_data
from rl_training.api.describing import LazyAttribute, documented, managed_class, signature_of
from rl_training.api.hints import attribute_hint, require_known, with_argument_hints
from rl_training.api.trained import TrainedModel
from rl_training.data.formats.own import KIND
from rl_training.environments.tensor_env import TensorEnv
from rl_training.environments.user_environments import Env, TensorEnvMaker, UserEnvironments, resolve_env
from rl_training.environments.wrapping import name_wrappers
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger, as_loggers
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec, resolve, spec_of
from rl_training.experiment.retention import copy_checkpoint
from rl_training.export.writing import Exported, export_checkpoint
from rl_training.importing import name_of
from rl_training.models.mlp import NETWORK
from rl_training.runs.callbacks import Callback, as_callbacks
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.spec import RunOptions
from rl_training.runs.state import config_of, steps_made
from rl_training.runtime import loading
from rl_training.runtime.resume_settings import naming_data
from rl_training.runtime.workflows import Recording, play_checkpoint, record_checkpoint

Environment = str | Env | type[Env] | Callable[..., Env] | TensorEnv | type[TensorEnv]
Watcher = Callback | Callable[[Session], object]
Watchers = Watcher | Sequence[Watcher] | None
Loggers = Logger | Sequence[Logger] | None
SeveralSeeds = Sequence[int | float] | str
# The type of the argument `seeds`, which determines the type of results.
Seeds = TypeVar("Seeds", bound=SeveralSeeds | None, default=None, covariant=True)
P = ParamSpec("P")
# Defaults of settings that a configuration requires and a class does not.
_DEFAULTS: dict[str, Any] = {"total_timesteps": 10_000}
# Fields of the configuration that a model passes to each workflow.
_ENV_KEYS = ("env_id", "env_kwargs", "eval_env", "given_envs", "wrappers", "allow_import")


class _Training(Protocol[P]):
    """A method that returns one result, or one per seed if the model has `seeds`."""

    @overload
    def __get__(self, model: ManagedAlgorithm[None], owner: object) -> Callable[P, TrainResult]: ...
    @overload
    def __get__(self, model: ManagedAlgorithm[SeveralSeeds], owner: object) -> Callable[P, list[TrainResult]]: ...


def _training(method: Callable[Concatenate[Any, P], TrainResult | list[TrainResult]]) -> _Training[P]:
    return with_argument_hints(method)  # type: ignore[return-value]


class ManagedAlgorithm(TrainedModel, Generic[Seeds]):
    """Base class of the algorithms: train, evaluate, predict, resume, export.

    Construct a model from an environment and settings (fields of `TrainConfig`, keys of `algo_kwargs`), or from a
    `TrainConfig`. The environment is a Gymnasium id, an object, its class, or a callable that creates one, or a
    `TensorEnv` or its class; None trains on data alone. An object that cannot be duplicated is used for training
    only; pass `eval_env` to evaluate.
    """

    algo: ClassVar[str]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the settings to the signature and docstring of a registered algorithm, for `help` and editors."""
        super().__init_subclass__(**options)
        if getattr(cls, "algo", None) in algorithm_names():
            text = cls.__dict__.get("__doc__")
            cls.__signature__ = LazyAttribute(lambda own: signature_of(own, _DEFAULTS))  # type: ignore[assignment]
            cls.__doc__ = LazyAttribute(lambda own: documented(own, text, _DEFAULTS))  # type: ignore[assignment]

    def __repr__(self) -> str:
        """`SAC('Pendulum-v1', seed=1): trained 5,000 steps, runs/…`, with the settings that are not defaults."""
        config, spec = self.config, get_algorithm_spec(self.algo)
        usual = TrainConfig(algo=self.algo, env_id=config.env_id, total_timesteps=config.total_timesteps).to_dict()
        regime, sections = spec.chosen(config.regime)
        usual |= sections.resolve({}).to_dict()
        values = config.to_dict()
        values |= values.pop("algo_kwargs")
        settings = "".join(f", {key}={value!r}" for key, value in values.items() if value != usual[key])
        head = f"{type(self).__name__}({config.env_id!r}{settings})"
        if self.run_dir is None:
            return f"{head}: not trained"
        unit = "updates" if regime.name == "offline" else "steps"
        return f"{head}: trained {self._steps:,} {unit}, {self.run_dir}"

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{attribute_hint(name)}")

    def __init__(self, env: Environment | TrainConfig | None = None, *others: Any, **settings: Any) -> None:
        if others:
            name, second = type(self).__name__, others[0]
            raise TypeError(
                f"{name}: give the environment first and settings by name, as {name}({second!r}, seed=0)"
            )
        self._given = UserEnvironments()
        if isinstance(env, TrainConfig):
            self.config = env
            if settings:
                raise ConfigError(f"give either a TrainConfig or settings, not both: {next(iter(settings))!r}")
        else:
            objects = {key: settings.pop(key) for key in ("eval_env", "wrappers") if settings.get(key) is not None}
            settings = {**settings, **_named(settings)}
            self.config = self._configure(settings, env)
            self._replace_environments(env, env_kwargs=settings.get("env_kwargs"), **objects)
            if env is not None and "env_id" in settings:
                both = f"{self.config.env_id!r} and {settings['env_id']!r}"
                raise ConfigError(f"env_id: given twice, {both}; leave one out", key="env_id")
        if self.config.algo != self.algo:
            name = type(self).__name__
            hint = "use its class, or rl_training.load(path) for a run"
            raise ConfigError(f"algo: {name} cannot run a config for {self.config.algo!r}; {hint}", key="algo")
        resolve(self.config)
        self._budget, self.members = self.config.total_timesteps, []

    @classmethod
    def _configure(cls, settings: dict[str, Any], env: Any) -> TrainConfig:
        """Divide settings into fields of `TrainConfig` and `algo_kwargs`; NumPy scalars become Python numbers."""
        settings = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}
        if settings.get("seed") is not None and settings.get("seeds") is not None:
            raise ConfigError("seeds: give seed or seeds", key="seeds")
        owned = get_algorithm_spec(cls.algo).owners()
        fields = {key: value for key, value in settings.items() if TrainConfig.has(key)}
        extra = {key: value for key, value in settings.items() if key not in fields}
        require_known(cls.__name__, extra, [*TrainConfig.model_fields, *owned], env)
        fields["algo_kwargs"] = {**fields.get("algo_kwargs", {}), **extra}
        return TrainConfig(**{"algo": cls.algo, "env_id": None, **_DEFAULTS, **fields})

    @_training
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

        With `seeds`, returns a list of `TrainResult`, one per seed in order; `members` are the models.

        A trained, interrupted or loaded model continues for `total_timesteps` more in the same folder, with the
        same settings. If early stopping ended the run, it continues only if the new total exceeds the old one.

        `callbacks`: a `Callback`, a function that is called with the session after each step, or a list of them.
        `dataset`: a `TransitionDataset`, a file or Minari id, or a mapping of the arguments of `from_arrays`.
        `loggers`: a `Logger` or a list of them, which also receive the rows of metrics.
        """
        steps = self._budget if total_timesteps is None else total_timesteps
        if self.checkpoint_path is not None:
            self.config.replace(total_timesteps=steps or 1)  # raises if it is not a number of steps
            if run_suffix is not None:
                raise ConfigError(f"run_suffix: {type(self).__name__} continues in its folder; create a new model")
            return self.resume(  # type: ignore[arg-type]
                self._steps + steps, callbacks, progress_bar, dataset=dataset, loggers=loggers
            )
        watching, config = as_callbacks(callbacks), self.config.replace(total_timesteps=steps)
        options = RunOptions(quiet=not progress_bar, loggers=as_loggers(loggers))
        self.config, self._dataset = resolve_data(dataset, config.with_seed(), self._given)
        run: dict[str, Any] = {"callbacks": watching, "dataset": self._dataset, "given": self._given}
        with self._recorded_on_error() as run["opened"]:
            results = ExperimentManager().train_all(self.config, run_suffix=run_suffix, options=options, **run)
        return self._record_results(results)

    @_training
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
        """Continue from the last checkpoint, to a larger `total_timesteps` if given.

        A member of a population is resumed with all other members, except those that have diverged; their results
        have the last checkpoint and no evaluation. Data in memory are used again. Pass `env` and `eval_env` again
        if they were given as objects and this model was loaded.
        """
        path, watching = self._checkpoint(), as_callbacks(callbacks)
        self._require_newest()
        self._replace_environments(env, eval_env)
        changes = self._environments() | ({} if total_timesteps is None else {"total_timesteps": total_timesteps})
        config = self.config.replace(**{"total_timesteps": self._total, **changes})
        self.config, data = resolve_data(dataset, config, self._given)
        self._dataset = self._dataset if dataset is None else data
        run: dict[str, Any] = {"callbacks": watching, "dataset": self._dataset, "given": self._given}
        if total_timesteps is None:
            run["at_least"] = self._total  # members that an aborted resume had not begun have a smaller one
        if dataset is not None and data is None:  # the run has settings that it decided when it started
            run["data_settings"] = naming_data(self.config)
        run |= {"changes": changes, "loggers": as_loggers(loggers), "quiet": not progress_bar}
        # Members that were not resumed have checkpoints.
        manager, complete = ExperimentManager(), not self.members and self._population is None
        with self._recorded_on_error(complete=complete) as run["opened"]:
            if self.members and self.config.population == "off":
                results = manager.resume_each([member._checkpoint() for member in self.members], **run)
            else:
                results = manager.resume_all(path, **run)
        return self._record_results(results)

    @with_argument_hints
    def evaluate(
        self, num_episodes: int | None = None, deterministic: bool | None = None, *, seed: int | None = None
    ) -> dict[str, Any]:
        """Evaluate on the same episodes as every run, or on those of another `seed`.

        Returns metrics, and `returns` and `lengths` of the episodes. A policy that was chosen by its evaluations
        is likely to have a lower return in other episodes.

        `deterministic=False` samples a stochastic policy, with fixed noise; a deterministic policy acts as before.
        None, here and in the methods below, means as the algorithm's authors evaluate: FQL samples, all others act
        deterministically.
        """
        path, changes = self._checkpoint("evaluate"), self._environments()
        metrics, played = play_checkpoint(
            path, num_episodes, seed=seed, deterministic=deterministic, changes=changes, given=self._given
        )
        return {**metrics, **played.episodes()}

    def record(
        self,
        path: str | Path,
        num_episodes: int = 1,
        deterministic: bool | None = None,
        *,
        seed: int | None = None,
        fps: float | None = None,
        max_steps: int | None = None,
    ) -> Recording:
        """Record a video of the policy to a new `.mp4` or `.gif` file.

        The episodes are the first of an evaluation, or those of another `seed`. `fps` defaults to the environment's
        frame rate; `max_steps` truncates episodes. An environment that was given as an object must have been
        created with `render_mode="rgb_array"`.
        """
        return record_checkpoint(
            self._checkpoint("record"),
            path,
            num_episodes,
            seed=seed,
            fps=fps,
            max_steps=max_steps,
            deterministic=deterministic,
            changes=self._environments(),
            given=self._given,
        )

    @with_argument_hints
    def predict(self, obs: ArrayLike, deterministic: bool | None = None) -> NDArray[Any]:
        """The action in the environment's units, for one observation or a batch."""
        if self._loaded is None:
            self._loaded = loading.load_policy(loading.open_checkpoint(self._checkpoint("predict")))
        return self._loaded.predict(obs, deterministic=deterministic)

    def predict_value(self, obs: ArrayLike, action: ArrayLike | None = None) -> loading.Values:
        """Value estimates of the critics: Q(obs, action) with `action` in the environment's units, or V(obs).

        Returns `mean` and `spread` over the critics, for one observation or a batch, or for one observation and a
        batch of actions. docs/guides/deploying.md defines V for each algorithm; BC has no critics.
        """
        if self._values is None:
            self._values = loading.load_values(loading.open_checkpoint(self._checkpoint("predict_value")))
        return self._values.predict(obs, action)

    def export(self, path: str | Path, deterministic: bool | None = None) -> Exported:
        """Write the policy to a new `.onnx` or `.npz` file that needs neither this package nor torch.

        The file includes observation normalisation and action scaling. It is compared with `predict` first; nothing
        is written if they differ. `deterministic=False` exports a stochastic policy with `noise` as a second input.
        """
        source = self._checkpoint("export")
        return export_checkpoint(source, path, deterministic=deterministic, dataset=self._dataset)

    def save(self, path: str | Path) -> Path:
        """Copy the last checkpoint to the new folder `path`, which `load` loads; every run is saved without it."""
        return copy_checkpoint(self._checkpoint("save"), Path(path).expanduser())

    @classmethod
    @with_argument_hints
    def load(
        cls,
        path: str | Path,
        *,
        env: Environment | None = None,
        eval_env: Environment | None = None,
        wrappers: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        network: Callable[..., Any] | None = None,
        allow_import: bool = False,
    ) -> Self:
        """Load a trained model from a checkpoint or run folder; neither environment nor data are needed.

        To evaluate or resume, pass `env`, `eval_env` and `wrappers` again if they were given as objects.
        `env_kwargs` replace those of the run, which are otherwise passed to `env`. A run with a network of your own
        needs its factory again, as `network`. `allow_import` instead permits to import what the run has recorded as
        `module:Name`. `ManagedAlgorithm.load` and `rl_training.load` find the class of the run's algorithm.
        """
        checkpoint = loading.open_checkpoint(path)
        config = config_of(checkpoint).replace(allow_import=allow_import)
        if network is not None:
            loading.use_network(config, network)
        model = (managed_class(cls, spec_of(config)) if cls is ManagedAlgorithm else cls)(config)
        assert isinstance(model, cls)
        model.checkpoint_path = checkpoint.path
        model._steps, model._total = steps_made(checkpoint), config.total_timesteps
        model._loaded = loading.load_policy(checkpoint, allow_import=allow_import)
        model._replace_environments(env, eval_env, wrappers, env_kwargs)
        return model

    def _replace_environments(
        self,
        env: Environment | None,
        eval_env: Environment | None = None,
        wrappers: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace environments, wrappers and `env_kwargs`; None keeps the present ones."""
        given: set[str] = set(self.config.given_envs)
        makers = {"env_id": self._given.env, "eval_env": self._given.eval_env}
        fields: dict[str, Any] = {} if env_kwargs is None else {"env_kwargs": dict(env_kwargs)}
        for key, value in (("env_id", env), ("eval_env", eval_env)):
            if value is not None:
                source = resolve_env(value, key)
                fields[key], makers[key] = source.name, source.maker
                if key == "env_id" and isinstance(source.maker, TensorEnvMaker):
                    fields["num_envs"] = source.maker.number(self.config.num_envs)
                given = given - {key} if source.by_name else given | {key}
                single = source.maker is not None and source.maker.single_instance
                if key == "env_id" and env_kwargs and (source.kwargs or single):
                    problem = "env_kwargs: the environment is made already; give its id or its class"
                    raise ConfigError(problem, key="env_kwargs")
                if key == "env_id" and source.kwargs:
                    fields["env_kwargs"] = dict(source.kwargs)
        own = self._given.wrappers
        if wrappers is not None:
            fields["wrappers"], own = name_wrappers(wrappers)
        self.config = self.config.replace(**fields, given_envs=sorted(given))
        self._given = UserEnvironments(makers["env_id"], makers["eval_env"], own)
        self._given.require_apart()

    def _environments(self) -> dict[str, Any]:
        return {key: value for key, value in self.config.to_dict().items() if key in _ENV_KEYS}


load = ManagedAlgorithm.load


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with classes and functions replaced by their names, which the configuration can store."""
    named: dict[str, Any] = {}
    for key, place in (("network", NETWORK), ("dataset_kind", KIND)):
        if callable(found := settings.get(key)):
            named[key] = name_of(found, place)
    if isinstance(loggers := settings.get("loggers"), list | tuple):
        named["loggers"] = [name_of(one, "loggers") if isinstance(one, type) else one for one in loggers]
    return named
