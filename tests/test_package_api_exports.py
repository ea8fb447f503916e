"""Every name the package promises, and its aliases."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from pathlib import Path

import pytest

import rl_training
import rl_training.algorithms as algorithms
import rl_training.api as api
from rl_training.algorithms import Learner
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.experiment import registry
from rl_training.experiment.config import TrainConfig
from rl_training.runs.session import TrainResult
from rl_training.runtime import controls, offline, workflows
from tests.reliability.processes import Child

ONLINE = {
    "dqn": "DQN",
    "ddpg": "DDPG",
    "td3": "TD3",
    "sac": "SAC",
    "tqc": "TQC",
    "redq": "REDQ",
    "crossq": "CrossQ",
    "flash_sac": "FlashSAC",
}
OFFLINE = {
    "bc": "BC",
    "td3_bc": "TD3BC",
    "iql": "IQL",
    "cql": "CQL",
    "awac": "AWAC",
    "crr": "CRR",
    "edac": "EDAC",
    "rebrac": "ReBRAC",
    "fql": "FQL",
    "cal_ql": "CalQL",
}
BOTH = {"rlpd": "RLPD"}
CLASSES = ONLINE | OFFLINE | BOTH


def test_the_registry_holds_exactly_these() -> None:
    specs = registry.list_algorithm_specs()
    assert all(isinstance(spec, registry.AlgorithmSpec) for spec in specs)
    regimes = {"online": ONLINE, "offline": OFFLINE, "offline-to-online": BOTH}
    found = {regime: [s.name for s in specs if s.regime == regime] for regime in regimes}
    assert found == {regime: list(names) for regime, names in regimes.items()}


@pytest.mark.parametrize("spelling", ["td3_bc", "TD3_BC", "td3+bc", "TD3-BC", " Td3+Bc "])
def test_spelling_does_not_matter(spelling: str) -> None:
    assert registry.get_algorithm_spec(spelling).name == "td3_bc"


def test_an_unknown_algorithm_is_one_line_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^algo: unknown algorithm 'sacc'; did you mean 'sac'\?; known: dqn, .*$"
    ):
        registry.get_algorithm_spec("sacc")


@pytest.mark.parametrize(("algo", "name"), CLASSES.items())
def test_learners_have_two_names_and_a_loss(algo: str, name: str) -> None:
    module = importlib.import_module(f"rl_training.algorithms.{algo}")
    learner = getattr(algorithms, name)
    assert issubclass(learner, Learner)
    assert learner.name == algo
    assert getattr(algorithms, f"{name}Algorithm") is learner
    assert getattr(module, name) is learner
    assert {name, f"{name}Algorithm", f"{algo}_loss"} <= set(algorithms.__all__)
    assert getattr(algorithms, f"{algo}_loss") is getattr(module, f"{algo}_loss")
    assert list(inspect.signature(getattr(module, f"{algo}_loss")).parameters) == ["batch"]


def test_every_exported_name_is_there() -> None:
    for module in (rl_training, api, algorithms):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_names_beside_the_learners() -> None:
    from rl_training.algorithms import critic_diversity_loss
    from rl_training.algorithms.edac import critic_diversity_loss as original
    from rl_training.algorithms.redq import _sample_target_critic_indices

    assert critic_diversity_loss is original
    indices = _sample_target_critic_indices(num_critics=10, subset_size=4)
    assert len(set(indices.tolist())) == 4


@pytest.mark.parametrize(("algo", "name"), CLASSES.items())
def test_managed_classes(algo: str, name: str) -> None:
    managed = getattr(rl_training, name)
    assert managed is getattr(api, name)
    assert issubclass(managed, rl_training.ManagedAlgorithm)
    assert managed.algo == algo
    assert name in rl_training.__all__
    assert name in api.__all__


@pytest.mark.parametrize("algo", CLASSES)
def test_train_functions(algo: str) -> None:
    module = importlib.import_module(f"rl_training.runtime.{algo}_trainer")
    train = getattr(module, f"train_{algo}")
    spec = registry.get_algorithm_spec(algo)
    assert spec.train is train
    assert spec.learner.name == algo
    parameters = inspect.signature(train).parameters
    assert list(parameters)[:4] == ["config", "run_suffix", "checkpoint_state", "callbacks"]
    assert parameters["config"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    for name in list(parameters)[1:]:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is None
    assert train.__annotations__["return"] == "TrainResult"
    assert train.__doc__


def test_models() -> None:
    import rl_training.models as models

    for name in ("MLPSACModel", "MLPREDQModel", "MLPQNetwork", "MLPTD3Model", "MLPDDPGModel", "MLPTQCModel"):
        assert hasattr(models, name), name
    assert importlib.import_module("rl_training.models.mlp_sac").MLPSACModel is models.MLPSACModel
    assert importlib.import_module("rl_training.models.mlp_redq").MLPREDQModel is models.MLPREDQModel


def test_training_surface() -> None:
    fields = set(TrainConfig.model_fields)
    assert {
        *("algo", "env_id", "seed", "total_timesteps", "output_dir", "device", "num_envs", "eval_episodes"),
        *("log_interval", "checkpoint_interval", "tags", "algo_kwargs", "env_kwargs", "acceleration", "tf32"),
    } <= fields
    defaults = TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=1)
    assert (defaults.device, defaults.num_envs, defaults.eval_episodes) == ("auto", 1, 5)
    assert list(TrainResult.__dataclass_fields__) == ["run_dir", "checkpoint_path", "metrics"]
    assert TransitionBatch._fields == ("obs", "actions", "rewards", "next_obs", "dones", "next_actions")
    assert TransitionBatch._field_defaults == {"next_actions": None}
    for module, names in {
        offline: ("_infer_env_spaces", "_build_offline_dataset"),
        controls: ("build_control_callbacks",),
        workflows: ("evaluate_checkpoint", "predict_checkpoint", "resume_training"),
        registry: ("AlgorithmSpec", "get_algorithm_spec", "list_algorithm_specs"),
    }.items():
        for name in names:
            assert callable(getattr(module, name))
    from rl_training.experiment.manager import ExperimentManager

    assert callable(ExperimentManager().train)


SHARED = (
    "batch_size hidden_sizes learning_rate learning_rate_schedule warmup_steps gamma eval_interval early_stopping"
)
ONLINE_KEYS = "buffer_capacity learning_starts train_frequency gradient_updates_per_step"
OFFLINE_KEYS = (
    "dataset_kind dataset_path dataset_id dataset_download dataset_size dataset_seed datasets"
    " normalize_observations reward_scale reward_shift top_fraction action_low action_high"
)
BUDGET_KEYS = "max_updates max_epochs"
OWN_KEYS = {
    "redq": "alpha num_critics subset_size policy_delay target_entropy backup_entropy tau",
    "edac": "alpha num_critics eta target_entropy backup_entropy tau",
    "awac": "awac_lambda max_advantage_weight weighting policy_distribution tau",
    "crr": "beta n_action_samples max_weight advantage_type weight_type policy_distribution tau",
    "rlpd": "alpha num_critics subset_size layer_norm policy_delay tau offline_pretrain_updates"
    " offline_batch_ratio",
    "sac": "alpha target_entropy backup_entropy tau",
    "crossq": "alpha initial_alpha target_entropy backup_entropy policy_delay",
    "flash_sac": "alpha initial_alpha target_entropy backup_entropy policy_delay tau num_bins value_limit "
    "longest_noise",
    "dqn": "double_q exploration_initial_eps exploration_final_eps exploration_fraction target_update_interval tau",
    "td3": "policy_delay target_policy_noise target_noise_clip exploration_noise tau",
    "ddpg": "exploration_noise tau",
    "tqc": "num_critics n_quantiles top_quantiles_to_drop_per_net alpha target_entropy tau",
    "iql": "expectile beta max_weight policy_distribution tau",
    "cql": "cql_alpha n_actions lagrange_threshold bc_steps backup_actions alpha tau",
    "cal_ql": "cql_alpha n_actions lagrange_threshold bc_steps backup_actions failure_reward alpha tau",
    "rebrac": "actor_bc_coef critic_bc_coef policy_delay target_policy_noise target_noise_clip layer_norm tau",
    "fql": "distill_coef flow_steps q_aggregation normalize_q_loss layer_norm tau",
    "td3_bc": "bc_alpha policy_delay target_policy_noise target_noise_clip tau",
    "bc": "stochastic policy_distribution",
}


@pytest.mark.parametrize("algo", CLASSES)
def test_keys_of_algo_kwargs(algo: str) -> None:
    keys = f"{SHARED} {OWN_KEYS[algo]}"
    if algo not in OFFLINE:
        keys += f" {ONLINE_KEYS}"
    if algo not in ONLINE:
        keys += f" {OFFLINE_KEYS}"
    if algo in OFFLINE:
        keys += f" {BUDGET_KEYS}"
    assert set(keys.split()) - registry.get_algorithm_spec(algo).sections.owners().keys() == set()


def test_mathematics_imports_neither_environments_nor_files(tmp_path: Path) -> None:
    """In a process that has forgotten what this one has imported."""
    unwanted = ("gymnasium", "yaml", "rl_training.experiment")
    package = types.ModuleType("rl_training")
    package.__path__ = list(rl_training.__path__)

    def import_again() -> None:
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("gymnasium", "yaml", "rl_training"):
                del sys.modules[name]
        sys.modules["rl_training"] = package
        importlib.import_module("rl_training.algorithms")
        print([name for name in unwanted if name in sys.modules], "rl_training.algorithms.sac" in sys.modules)

    child = Child(import_again, tmp_path / "output")
    assert (child.wait(), child.text().strip()) == (0, "[] True")


def test_register_takes_a_learner_and_keywords() -> None:
    assert "register" in rl_training.__all__
    parameters = inspect.signature(rl_training.register).parameters
    assert list(parameters) == ["learner", "regime", "title", "year", "discrete", "defaults"]
    assert (parameters["regime"].default, parameters["title"].default) == ("online", None)
