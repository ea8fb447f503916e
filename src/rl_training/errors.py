"""Exceptions with their exit codes on the command line, and helpers for one-line messages.

Every message is one line that names the place, the value and the remedy.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

M = TypeVar("M", bound=Callable[..., Any])


class RLTrainingError(Exception):
    """Base class of all expected errors; `exit_code` is the exit status of the command line."""

    exit_code = 1


class EnvironmentFailure(RLTrainingError):
    """The environment raised, died or hung; the message contains its index, seed and step."""


class ConfigError(RLTrainingError, ValueError):
    """A setting is unknown, of the wrong type, out of range or contradicts another.

    `key` is the dotted path of the invalid setting, if there is one; it is used to add the line of the file.
    """

    exit_code = 2

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key

    @classmethod
    def of(cls, key: str, problem: str) -> Self:
        """The error of one setting: its message is `key: problem`."""
        return cls(f"{key}: {problem}", key=key)


class MemoryLimitError(ConfigError):
    """The configuration needs more memory than this machine has."""


class RunInUse(ConfigError):
    """Another process holds the lock of the run folder."""


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged, not written by this package or of a newer format."""

    exit_code = 3


class NotPlainDataError(CheckpointError):
    """A value to be saved is not plain data; a retry would fail again."""


class DiskFullError(CheckpointError):
    """A checkpoint could not be written because the disk is full or a quota is exceeded."""


class DatasetError(RLTrainingError):
    """A data set is missing, damaged or not a set of transitions."""

    exit_code = 3


class ExportError(RLTrainingError):
    """A policy cannot be exported, or the exported file computes different actions."""


class DivergedError(RLTrainingError):
    """An observation, reward, loss or parameter became NaN or infinite; `first_bad` is its name."""

    exit_code = 4

    def __init__(self, message: str, *, first_bad: str | None = None) -> None:
        super().__init__(message)
        self.first_bad = first_bad


class ClaimLost(RLTrainingError):
    """Another worker has taken over this run; the process that catches this must stop writing to it."""


class DeviceLostError(RLTrainingError):
    """An error of the GPU left this process unable to use it; only a new process can."""


class MissingDependencyError(ConfigError):
    """A feature needs an optional package; the message contains the install command."""


# Names of settings in Stable-Baselines3, CleanRL, d3rlpy and CORL, and keys of studies and tunings, with the names
# here or, if there is none, a remedy.
_OTHER_LIBRARIES = {
    **dict.fromkeys(("net_arch", "hidden_dim", "actor_encoder_factory", "critic_encoder_factory"), "hidden_sizes"),
    **dict.fromkeys(("policy_kwargs", "features_extractor_class"), "hidden_sizes"),
    **dict.fromkeys(("max_timesteps", "num_train_ops"), "total_timesteps"),
    **dict.fromkeys(("eval_freq", "eval_frequency", "eval_every"), "eval_interval"),
    **dict.fromkeys(("n_episodes", "n_eval_episodes", "n_test_episodes"), "eval_episodes"),
    **dict.fromkeys(("normalize", "normalize_states", "observation_scaler"), "normalize_observations"),
    **dict.fromkeys(("policy_freq", "policy_frequency", "update_actor_interval"), "policy_delay"),
    **dict.fromkeys(("policy_noise", "target_smoothing_sigma"), "target_policy_noise"),
    **dict.fromkeys(("noise_clip", "target_smoothing_clip"), "target_noise_clip"),
    **dict.fromkeys(("lr", "actor_lr", "critic_lr", "q_lr", "qf_lr", "vf_lr"), "learning_rate"),
    "critic_learning_rate": "learning_rate",
    **dict.fromkeys(("tensorboard_log", "checkpoints_path", "logdir"), "output_dir"),
    "ent_coef": "alpha",
    "activation_fn": "activation",
    "action_noise": "exploration_noise",
    "buffer_size": "buffer_capacity",
    "train_freq": "train_frequency",
    "gradient_steps": "gradient_updates_per_step",
    "n_steps": "n_step",
    "n_envs": "num_envs",
    "n_critics": "num_critics",
    "dataset": "use --dataset or learn(dataset=…)",
    **dict.fromkeys(("callback", "callbacks"), "use learn(callbacks=…)"),
    "target_network_frequency": "target_update_interval",
    "start_e": "exploration_initial_eps",
    "end_e": "exploration_final_eps",
    "cuda": "device",
    "exp_name": "tags",
    "capture_video": "use rl-training record",
    **dict.fromkeys(("verbose", "progress_bar"), "use learn(progress_bar=…) or rl-training --quiet"),
    "policy": "leave it out: hidden_sizes and network set the networks",
    "use_sde": "state-dependent exploration is not included",
    "discount": "gamma",
    "env_name": "env_id",
    "iql_tau": "expectile",
    "weight_temp": "beta",
    "conservative_weight": "cql_alpha",
    "cql_n_actions": "n_actions",
    "alpha_threshold": "lagrange_threshold",
    "policy_lr": "actor_learning_rate",
    "lam": "awac_lambda",
    "actor_beta": "actor_bc_coef",
    "critic_beta": "critic_bc_coef",
    "normalize_reward": "reward_range_scaling",
    "reward_scaler": "reward_scale",
    "reward_bias": "reward_shift",
    **dict.fromkeys(("cql_lagrange", "cql_target_action_gap"), "lagrange_threshold"),
    **dict.fromkeys(("project", "group", "name", "track"), "use loggers: [wandb] and tags"),
    **dict.fromkeys(("wandb_project_name", "wandb_entity"), "use loggers: [wandb] and its environment variables"),
    **dict.fromkeys(("iql_deterministic", "actor_dropout", "max_grad_norm"), "it is not included; leave it out"),
    **dict.fromkeys(("replay_buffer_class", "optimize_memory_usage"), "it is not included; leave it out"),
    "num_epochs": "total_timesteps",
    "n_steps_per_epoch": "use log_interval, eval_interval and checkpoint_interval",
    "evaluators": "use env and eval_interval",
    "dataset_name": "dataset_id",
    "load_model": "use rl_training.load(path) or resume",
    "q_n_hidden_layers": "hidden_sizes",
    "actor_learning_rate": "learning_rate",
    "n_action_samples": "n_actions",
    "soft_q_backup": "backup_entropy",
    **dict.fromkeys(("use_automatic_entropy_tuning", "autotune"), "use alpha: auto"),
    "cql_temp": "the temperature of the log-sum-exp is 1; leave it out",
    "critic_ln": "layer_norm",
    "policy_type": "stochastic",
    "frac": "top_fraction",
    "action_scaler": "actions are scaled by the actuator's bounds; leave it out",
    "compile_graph": "acceleration",
    **dict.fromkeys(("grid", "zip", "list", "tasks"), "it is a key of a study: use rl-training sweep"),
    **dict.fromkeys(("space", "trials", "confirm"), "it is a key of a tuning: use rl-training tune"),
    "base": "it is a key of a study or tuning: use rl-training sweep or tune",
}


def setting_hint(name: str, known: Collection[str]) -> str:
    """`; here it is 'alpha'` or a remedy for the name of a setting in another library, else `nearest`."""
    if (here := _OTHER_LIBRARIES.get(name)) is None:
        return nearest(name, known)
    if here not in known:  # actor_learning_rate is a setting of few algorithms here
        here = _OTHER_LIBRARIES.get(here, here)
    if " " in here:
        return f"; {here}"
    return f"; here it is {here!r}{', which is not one of these settings' * (here not in known)}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` if a known name is close, else an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {match[0]!r}?" if match else ""


def missing_algorithm(name: str) -> str:
    """`; it is not included, …` for an algorithm that this package leaves to others, else an empty string."""
    absent = name.lower() in ("ppo", "a2c", "trpo", "her", "herreplaybuffer")
    return "; it is not included, see docs/limits.md" if absent else ""


def argument_hints(remedies: Mapping[str, str]) -> Callable[[M], M]:
    """A decorator: the error for an unknown keyword has its remedy, or the closest and all accepted names."""

    def decorate(method: M) -> M:
        known = [name for name in inspect.signature(method).parameters if name not in ("cls", "self")]

        @functools.wraps(method)
        def checked(*given: Any, **keywords: Any) -> Any:
            for name in (name for name in keywords if name not in known):
                hint = remedies.get(name) or f"accepted: {', '.join(known)}{nearest(name, known)}"
                raise TypeError(f"{method.__name__}() has no argument {name!r}; {hint}")
            return method(*given, **keywords)

        return checked  # type: ignore[return-value]

    return decorate


LONGEST_CAUSE = 1_000
"""maximum length, in characters, of a message of user code that is quoted in a message of this package"""

# Control characters of terminals and of text direction, and lone surrogates; not line breaks and tabs.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """`text` with its control characters escaped (ESC as `\\x1b`), so that a terminal does not interpret them."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def one_line(text: object, longest: int | None = None) -> str:
    """`text` without line breaks and control characters, cut after `longest` characters."""
    whole = str(text)
    start = whole if longest is None else whole[: 2 * longest]
    line = escaped(re.sub(r"\s*[\r\n]+\s*", " ", start.strip())).replace("\t", " ")
    if longest is None or (len(line) <= longest and len(start) == len(whole)):
        return line
    return f"{line[:longest]}… ({len(whole):,} characters in all)"


# Messages of CUDA and Triton, and those after which a process can still use the GPU.
_DEVICE_ERROR = re.compile(r"\b(CUDA|HIP)( driver)? error: |\bTriton Error \[")
_HARMLESS = re.compile(r"out of memory|ALLOC_FAILED|invalid device ordinal|no kernel image")


def device_error(error: BaseException | None) -> str | None:
    """The first line of the error of a GPU that this process cannot use any more; None for any other error.

    It may be among the causes of `error`. The other lines of torch's messages are advice on debugging.
    """
    for one in with_causes(error):
        line = str(one).partition("\n")[0] if isinstance(one, RuntimeError) else ""
        if _DEVICE_ERROR.search(line) and not _HARMLESS.search(line):
            return one_line(line)
    return None


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, each once: `raise error from error` is its own cause."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def cause_of(error: BaseException) -> str:
    """The type and message of an error that user code raised, on one line of bounded length."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}, whose message cannot be read"
    return one_line(text, LONGEST_CAUSE)
