"""`policy_distribution`: the density that cloning fits, its samples, and its effect on a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms import AWAC, BC, CRR, IQL, SAC, DiscreteBC, DiscreteIQL, Learner
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.experience.acting import ActingPolicy
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.export.writing import export_checkpoint
from rl_training.models import GaussianActor, MLPBCModel, MLPIQLModel, MLPSACModel, TanhGaussianActor
from rl_training.models.arrays import ArrayPolicy
from rl_training.runs.session import TrainResult
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint
from tests.exports import BOX, run_file, trained
from tests.helpers import ACTIONS, BATCH, OBS, build, constant_outputs, double, member, random_batch, sequential
from tests.runs import ALL, fingerprint, interrupted, mostly_slow, resume, tiny, train
from tests.test_exact_resume import assert_exact, eventful
from tests.test_population_runs import all_unlike, apart, short, together
from tests.test_population_updates import EVERY_OPTIMISER, SIZE, assert_members_equal, in_double_precision

CLONERS: dict[str, type[Learner]] = {"awac": AWAC, "bc": BC, "crr": CRR, "iql": IQL}
DISTRIBUTIONS = ("tanh", "gaussian")
LIMIT = 1.0 - 1e-6

every_cloner = pytest.mark.parametrize("algo", CLONERS)
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


Skewed = Callable[[str, dict[str, Any]], TrainResult]


@pytest.fixture(scope="session")
def skewed(library: Any) -> Skewed:
    """A finished run in a world with skewed bounds, with other settings of its distribution."""

    def run(algo: str, settings: dict[str, Any]) -> TrainResult:
        found: TrainResult = library.get(
            ["skewed", algo, settings], lambda folder: trained(algo, folder, **settings)
        )
        return found

    return run


def settings_of(algo: str, distribution: str) -> dict[str, Any]:
    return {"policy_distribution": distribution} | ({"stochastic": True} if algo == "bc" else {})


def other(algo: str) -> dict[str, Any]:
    """The settings of the distribution that is not the algorithm's default, which every other test has."""
    usual = get_algorithm_spec(algo).sections.default("policy_distribution")
    return settings_of(algo, next(name for name in DISTRIBUTIONS if name != usual))


def learner_of(algo: str, distribution: str, **changes: Any) -> Any:
    return build(CLONERS[algo], **settings_of(algo, distribution), **changes)


# The density and what is drawn from it.


@pytest.mark.parametrize("state_std", [False, True])
def test_log_prob_is_that_of_a_normal_around_the_squashed_mean(state_std: bool) -> None:
    """At the bounds and beyond them too; one std for all states or one in each, within its bounds."""
    torch.manual_seed(0)
    actor = GaussianActor(OBS, ACTIONS, (16,), state_std=state_std, log_std_bounds=(-1.0, 0.5)).double()
    with torch.no_grad():
        actor.net.head.weight.mul_(5.0)  # some log std leave their bounds
    obs = torch.randn(200, OBS, dtype=torch.float64)
    outputs = sequential(actor.net)(obs)
    log_std = outputs[:, ACTIONS:] if state_std else actor.log_std
    assert log_std is not None
    reference = Independent(Normal(outputs[:, :ACTIONS].tanh(), log_std.clamp(-1.0, 0.5).exp()), 1)
    for actions in (torch.rand(200, ACTIONS).double() * 2 - 1, torch.ones(200, ACTIONS).double(), obs[:, :ACTIONS]):
        torch.testing.assert_close(actor.log_prob(obs, actions), reference.log_prob(actions), rtol=1e-12, atol=0)
    assert not state_std or (outputs[:, ACTIONS:].abs() > 1.0).any()


def test_both_have_one_network_and_one_mode() -> None:
    """The same weights mean the same deterministic policy; so one can be compared with the other."""
    tanh, plain = (build(CRR, policy_distribution=name).model for name in DISTRIBUTIONS)
    assert (type(tanh.actor), type(plain.actor)) == (TanhGaussianActor, GaussianActor)
    ours, theirs = (dict(model.named_parameters()) for model in (tanh, plain))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    obs = torch.randn(50, OBS)
    assert torch.equal(tanh.policy.mode(obs), plain.policy.mode(obs))
    assert tanh.actor.log_std_bounds == plain.actor.log_std_bounds == (-5.0, 2.0)


def test_samples_are_clipped_and_have_atoms_at_the_bounds() -> None:
    model = MLPSACModel(1, 1, (4,), policy_distribution="gaussian").double()
    mean, std = 0.8, 0.5
    constant_outputs(model.actor.net, [[math.atanh(mean), math.log(std)]])
    noise = torch.randn(40_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    obs = torch.zeros(40_000, 1, dtype=torch.float64)
    actions, logprobs = model.actor.sample_with_logprob(obs, noise)
    torch.testing.assert_close(actions, (mean + std * noise).clamp(-1.0, 1.0))
    torch.testing.assert_close(actions, model.actor.sample(obs, noise))
    torch.testing.assert_close(logprobs, model.action_logprobs(obs, actions))
    above = 1.0 - float(torch.special.ndtr(torch.tensor((1.0 - mean) / std)))
    assert float((actions == 1.0).double().mean()) == pytest.approx(above, abs=0.01)
    assert actions.min() >= -1.0


def test_draws_of_several_actions_per_state_are_draws_of_one() -> None:
    actor, obs = build(CRR, policy_distribution="gaussian").model.actor, torch.randn(BATCH, OBS)
    noise = 3.0 * torch.randn(4, BATCH, ACTIONS)
    drawn = actor.drawn(*actor(obs), noise)
    assert torch.equal(drawn, torch.stack([actor.sample(obs, one) for one in noise]))
    assert (drawn.abs() == 1.0).any()


# The update against a plain one.


def family(distribution: str, mean: Tensor, log_std: Tensor) -> Any:
    """With torch's distributions; actions at the bounds have no density under tanh and are moved inwards."""
    std = log_std.clamp(-5.0, 2.0).exp()
    if distribution == "gaussian":
        return Independent(Normal(mean.tanh(), std), 1)
    return Independent(TransformedDistribution(Normal(mean, std), TanhTransform()), 1)


def drawn_from(distribution: str, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    std = log_std.clamp(-5.0, 2.0).exp()
    return (mean.tanh() + std * noise).clamp(-1, 1) if distribution == "gaussian" else (mean + std * noise).tanh()


class Plain:
    """A learner's networks rewritten with `torch.nn`, in float64, and its losses written out."""

    def __init__(self, algo: str, distribution: str, learner: Any) -> None:
        self.algo, self.distribution, self.learner, model = algo, distribution, learner, learner.model
        self.actor = sequential(model.actor.net)
        self.log_std = None if getattr(model.actor, "log_std", None) is None else model.actor.log_std.detach()
        if algo != "bc":
            self.critics = [member(model.critics.net, i) for i in range(2)]
            self.targets = [member(model.target_critics.net, i) for i in range(2)]

    def outputs(self, actor: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
        if self.log_std is not None:
            return actor(obs), self.log_std
        mean, log_std = actor(obs).chunk(2, -1)
        return mean, log_std

    def logprobs(self, batch: TransitionBatch) -> Tensor:
        actions = batch.actions.clamp(-LIMIT, LIMIT) if self.distribution == "tanh" else batch.actions
        found: Tensor = family(self.distribution, *self.outputs(self.actor, batch.obs)).log_prob(actions)
        return found

    @staticmethod
    def q(networks: list[nn.Sequential], obs: Tensor, actions: Tensor) -> Tensor:
        return torch.stack([network(torch.cat([obs, actions], -1))[:, 0] for network in networks])

    def sample(self, actor: nn.Module, obs: Tensor, noise: Tensor) -> Tensor:
        return drawn_from(self.distribution, *self.outputs(actor, obs), noise)

    def critic_loss(self, batch: TransitionBatch, next_values: Tensor) -> Tensor:
        target = batch.rewards + self.learner.config.gamma * (1 - batch.dones) * next_values
        return ((self.q(self.critics, batch.obs, batch.actions) - target) ** 2).mean(1).sum()

    def losses(self, batch: TransitionBatch, noises: Tensor) -> dict[str, Tensor]:
        """Actor's and critics', by the algorithm's own rule for advantage and target."""
        logprobs = self.logprobs(batch)
        if self.algo == "bc":
            return {"actor": -logprobs.mean()}
        config = self.learner.config
        with torch.no_grad():
            q = self.q(self.critics, batch.obs, batch.actions)
            if self.algo == "iql":
                value, best = (
                    sequential(self.learner.model.value.net),
                    self.q(self.targets, batch.obs, batch.actions),
                )
                advantages = best.amin(0) - value(batch.obs)[:, 0]
                weights = (config.beta * advantages).exp().clamp(max=config.max_weight)
                next_values = value(batch.next_obs)[:, 0]
            elif self.algo == "awac":
                own = self.q(self.critics, batch.obs, self.sample(self.actor, batch.obs, noises[1]))
                weights = (
                    ((q.amin(0) - own.amin(0)) / config.awac_lambda).exp().clamp(max=config.max_advantage_weight)
                )
                next_values = self.q(
                    self.targets, batch.next_obs, self.sample(self.actor, batch.next_obs, noises[0])
                )
            else:
                drawn = [self.sample(self.actor, batch.obs, one) for one in noises[1:]]
                own = torch.stack([self.q(self.critics, batch.obs, one).mean(0) for one in drawn]).mean(0)
                weights = ((q.mean(0) - own) / config.beta).exp().clamp(max=config.max_weight)
                target_actor = sequential(self.learner.target_actor.net)
                next_values = self.q(
                    self.targets, batch.next_obs, self.sample(target_actor, batch.next_obs, noises[0])
                )
        critics = self.critic_loss(batch, next_values if self.algo == "iql" else next_values.amin(0))
        return {"actor": -(weights * logprobs).mean(), "critics": critics}


def with_bounds(batch: TransitionBatch) -> TransitionBatch:
    """A third of all action entries exactly at a bound."""
    at = torch.arange(batch.actions.numel()).view_as(batch.actions) % 3 == 0
    return batch._replace(actions=torch.where(at, batch.actions.sign(), batch.actions))


@every_distribution
@every_cloner
def test_losses_and_gradients_are_those_of_a_plain_implementation(algo: str, distribution: str) -> None:
    learner = learner_of(algo, distribution)
    in_double_precision(learner)
    if algo == "crr":
        with torch.no_grad():  # make the two policies different
            learner.model.actor.net.head.bias.add_(0.3)
    batch = double(with_bounds(random_batch()))
    noises = 2.0 * torch.randn(3, BATCH, ACTIONS, dtype=torch.float64)  # some beyond the bounds
    plain = Plain(algo, distribution, learner)
    expected = plain.losses(batch, noises)
    if algo == "bc":
        inputs: tuple[Any, ...] = (batch,)
    elif algo == "iql":
        inputs = (learner.outputs(batch),)
    else:
        inputs = (learner.outputs(batch, noises[0], noises[1] if algo == "awac" else noises[1:]),)
    found = {"actor": learner.actor_loss(*inputs)[0]}
    if algo != "bc":
        found["critics"] = learner.critic_loss(*inputs)[0]
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-7, atol=1e-9)
    [ours] = torch.autograd.grad(found["actor"], [learner.model.actor.net.head.weight])
    [theirs] = torch.autograd.grad(expected["actor"], [plain.actor[-1].weight])
    torch.testing.assert_close(ours[0], theirs.T, rtol=1e-7, atol=1e-9)
    assert theirs.abs().max() > 1e-3


# Why there is a choice.


def bimodal(at_bound: float, rows: int = 200) -> TransitionBatch:
    """In every state, some actions are at the upper bound and all others at -0.3."""
    actions = torch.full((rows, ACTIONS), -0.3)
    actions[: int(at_bound * rows)] = 1.0
    return random_batch(size=rows)._replace(obs=torch.zeros(rows, OBS), actions=actions)


@pytest.mark.parametrize("at_bound", mostly_slow([0.2, 0.8], 0.2))
def test_actions_at_a_bound_drag_the_squashed_mean_alone(at_bound: float) -> None:
    """What tanh fits is the mean of atanh(a), in which a bound counts as 7.25; the other fits the mean of a.

    With a fifth at the bound the mean action is -0.04 and the squashed policy's is +0.84; with four fifths it lies
    at 5.7 before tanh, the other at 0.95.
    """
    batch, means = bimodal(at_bound), {}
    for name in DISTRIBUTIONS:
        learner = build(BC, stochastic=True, policy_distribution=name, learning_rate=1e-2)
        for i in range(400):
            learner.update(batch, global_step=i)
        means[name] = learner.model.actor.net(batch.obs[:1])[0, :ACTIONS].detach()
    dragged = torch.atanh(batch.actions.double().clamp(-LIMIT, LIMIT)).mean(0).float()
    moderate = torch.atanh(batch.actions.mean(0))
    assert (dragged > 1.0 + moderate).all()
    torch.testing.assert_close(means["tanh"], dragged, atol=0.1, rtol=0.02)
    torch.testing.assert_close(means["gaussian"], moderate, atol=0.1, rtol=0.02)


# Bounds of the environment.


@every_distribution
def test_a_density_is_one_of_actions_between_minus_one_and_one(distribution: str, tmp_path: Path) -> None:
    """The same data in other units, with bounds that are not symmetric, is the same run."""
    batch, results = random_batch(size=100), []
    ends = np.arange(100) % 10 == 9
    for place, (low, high) in {"unit": (-1.0, 1.0), "skewed": (-1.0, 3.0)}.items():
        actions = low + 0.5 * (high - low) * (batch.actions.numpy() + 1.0)
        np.savez(
            tmp_path / f"{place}.npz",
            observations=batch.obs.numpy(),
            next_observations=batch.next_obs.numpy(),
            actions=actions,
            rewards=batch.rewards.numpy(),
            terminals=np.zeros(100, bool),
            timeouts=ends,
        )
        kwargs = settings_of("bc", distribution) | {
            "dataset_kind": "npz",
            "dataset_path": str(tmp_path / f"{place}.npz"),
            "action_low": [low] * ACTIONS,
            "action_high": [high] * ACTIONS,
        }
        results.append(train(tiny("bc", tmp_path / place, kwargs=kwargs, env_id=None, eval_episodes=0)))
    one, two = (result.metrics["behavior_logprob_mean"] for result in results)
    assert one == pytest.approx(two, rel=1e-4)
    unit, skewed = (predict_checkpoint(result.checkpoint_path, batch.obs.numpy()) for result in results)
    np.testing.assert_allclose(skewed, 1.0 + 2.0 * unit, atol=1e-4)


@every_cloner
def test_in_a_skewed_world_actions_reach_the_bounds_and_do_not_pass_them(algo: str, skewed: Skewed) -> None:
    run = skewed(algo, settings_of(algo, "gaussian"))
    loaded = load_policy(open_checkpoint(run.run_dir))
    assert isinstance(loaded.policy.actor, GaussianActor)
    obs = (np.random.default_rng(0).normal(size=(50, 3)) * [0.1, 1.0, 20.0] + [5.0, 0.0, -30.0]).astype(np.float32)
    for sign, bound in ((1.0, BOX.high), (-1.0, BOX.low)):
        assert np.array_equal(loaded.act(obs, np.full((50, 2), sign * 1e3, np.float32)), np.tile(bound, (50, 1)))
    for deterministic in (True, False):
        actions = predict_checkpoint(run.run_dir, obs, deterministic=deterministic)
        assert np.all((actions >= BOX.low) & (actions <= BOX.high))
        assert np.ptp(actions, axis=0).min() > 0
    np.testing.assert_allclose(predict_checkpoint(run.run_dir, obs), loaded.act(obs, np.zeros((50, 2), np.float32)))
    played = evaluate_checkpoint(run.run_dir, 2, deterministic=False)
    assert played["eval_return_mean"] != evaluate_checkpoint(run.run_dir, 2)["eval_return_mean"]


# How it runs, is kept and leaves.


@every_cloner
def test_members_of_a_population_equal_single_learners(algo: str) -> None:
    options: dict[str, Any] = {"normalize": True, "schedule": "warm-up, then cosine"}
    assert_members_equal(CLONERS[algo], (EVERY_OPTIMISER | other(algo),) * SIZE, updates=8, **options)


@pytest.mark.parametrize("algo", mostly_slow(CLONERS, "crr"))
def test_members_equal_their_single_runs(algo: str, tmp_path: Path) -> None:
    config = short(algo, tmp_path, [3, 0], kwargs=other(algo))
    assert all_unlike(together(config), apart(config)) == [[], []]


@pytest.mark.parametrize("algo", mostly_slow(CLONERS, "crr"))
def test_it_resumes_exactly_and_is_in_the_checkpoint(algo: str, tmp_path: Path) -> None:
    settings = other(algo)
    result = assert_exact(eventful(algo, tmp_path, kwargs=settings), 40)
    recorded = read_checkpoint(result.checkpoint_path).records["config"]["algo_kwargs"]
    assert {name: recorded[name] for name in settings} == settings


def test_it_makes_another_run(tmp_path: Path) -> None:
    ours, theirs = (
        fingerprint(train(tiny("crr", tmp_path / name, kwargs=settings_of("crr", name))).checkpoint_path)
        for name in DISTRIBUTIONS
    )
    assert any(ours[key] != theirs[key] for key in ours if key.startswith("networks/model.actor"))


@pytest.mark.parametrize("suffix", ["onnx", "npz"])
@pytest.mark.parametrize("deterministic", [True, False])
@every_cloner
def test_what_is_exported_acts_alike(
    algo: str, deterministic: bool, suffix: str, skewed: Skewed, tmp_path: Path
) -> None:
    run, target = skewed(algo, other(algo)).run_dir, tmp_path / f"policy.{suffix}"
    assert export_checkpoint(run, target, deterministic=deterministic).largest_difference <= 1e-5
    tests = np.load(tmp_path / "policy.test.npz")
    given = [tests["observation"]] + ([] if deterministic else [tests["noise"]])
    got = run_file(target)(*given)
    np.testing.assert_allclose(got, tests["action"], rtol=0, atol=float(tests["tolerance"]))
    if not deterministic:  # the clip is in the file
        far = run_file(target)(tests["observation"], np.full_like(tests["noise"], 1e3))
        np.testing.assert_allclose(far, np.tile(BOX.high, (len(far), 1)))


@every_distribution
@every_cloner
def test_a_copy_on_arrays_acts_alike(algo: str, distribution: str) -> None:
    learner = learner_of(algo, distribution, normalize=True)
    learner.model.normalizer.clip()
    copied, policy = ActingPolicy(learner, copies=True).current(), learner.model.policy
    assert isinstance(copied, ArrayPolicy) == (algo != "iql" or distribution == "tanh")
    for rows in (1, 7, 200):
        obs, noise = 3.0 * torch.randn(rows, OBS), 3.0 * torch.randn(rows, ACTIONS)
        with torch.inference_mode():
            assert torch.allclose(copied.mode(obs), policy.mode(obs), rtol=0, atol=5e-6)
            assert torch.allclose(copied.sample(obs, noise), policy.sample(obs, noise), rtol=0, atol=5e-6)
            assert copied.sample(obs, noise).abs().max() <= 1.0


def test_nan_is_preserved_on_arrays() -> None:
    """Clipping must not hide that a policy has diverged."""
    learner = build(CRR, policy_distribution="gaussian")
    with torch.no_grad():
        learner.model.actor.net.head.bias.fill_(torch.nan)
    copied = ActingPolicy(learner, copies=True).current()
    for policy in (copied, learner.model.policy):
        assert policy.sample(torch.zeros(1, OBS), torch.zeros(1, ACTIONS)).isnan().all()


# Taking over and going on.


@pytest.mark.parametrize(
    ("algo", "into"),
    [("awac", "sac"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (("crr", "awac"), ("bc", "crr")))],
)
def test_networks_of_the_other_distribution_are_copied_with_a_warning(
    algo: str, into: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = train(tiny(algo, tmp_path, kwargs=settings_of(algo, "gaussian"), total_timesteps=20, eval_episodes=0))
    kwargs = {} if into == "sac" else {"policy_distribution": "tanh"}
    with caplog.at_level(logging.WARNING):
        train(tiny(into, tmp_path, kwargs=kwargs, init_from=before.run_dir, total_timesteps=25, eval_episodes=0))
    said = f"the policy of {before.checkpoint_path} is 'gaussian' and this run's 'tanh': its mode is the same"
    assert said in caplog.text


@pytest.mark.parametrize("algo", mostly_slow(CLONERS, "crr"))
def test_networks_of_the_same_distribution_are_copied_without_a_warning(
    algo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for distribution in DISTRIBUTIONS:
        kwargs = settings_of(algo, distribution)
        before = train(tiny(algo, tmp_path, kwargs=kwargs, total_timesteps=5, eval_episodes=0))
        kwargs |= {"learning_rate": 1e-30}
        fields: dict[str, Any] = {"init_from": before.run_dir, "total_timesteps": 1, "eval_episodes": 0}
        after = train(tiny(algo, tmp_path, kwargs=kwargs, **fields))
        theirs, ours = (read_checkpoint(one.checkpoint_path).tensors["networks"] for one in (before, after))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours if name.startswith("model.actor"))
    assert "init_from" not in caplog.text


def test_a_run_under_way_keeps_its_distribution(tmp_path: Path) -> None:
    run = interrupted(tiny("crr", tmp_path, kwargs=settings_of("crr", "gaussian")), 30)
    message = (
        r"^algo_kwargs\.policy_distribution: tanh differs from the gaussian of this run's networks; start a new"
    )
    with pytest.raises(ConfigError, match=message):
        resume(run, overrides=["policy_distribution=tanh"])


@pytest.mark.parametrize("schema", [None, 2])
@pytest.mark.parametrize("algo", ["awac", "bc", "crr"])
def test_a_record_from_before_the_setting_means_a_squashed_policy(
    algo: str, schema: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regardless of the current default."""
    field = CLONERS[algo].Config.model_fields["policy_distribution"]
    monkeypatch.setattr(field, "default", "gaussian")
    kwargs = {"stochastic": True} if algo == "bc" else {}
    config = TrainConfig(algo=algo, env_id="Pendulum-v1", total_timesteps=9, algo_kwargs=kwargs)
    read = with_defaults_of(schema, config)
    assert read.algo_kwargs["policy_distribution"] == "tanh"
    kept = config.replace(algo_kwargs=kwargs | {"policy_distribution": "gaussian"})
    assert with_defaults_of(schema, kept).algo_kwargs["policy_distribution"] == "gaussian"


def test_a_record_of_bc_on_discrete_actions_gets_no_such_setting() -> None:
    config = TrainConfig(algo="bc", env_id="CartPole-v1", total_timesteps=9, algo_kwargs={"learning_rate": 1e-3})
    assert "policy_distribution" not in with_defaults_of(2, config).algo_kwargs
    for learner in (DiscreteBC, DiscreteIQL):
        assert "policy_distribution" not in learner.Config.model_fields


# What is refused.


@pytest.mark.parametrize("algo", ALL)
def test_other_values_and_other_algorithms_are_refused_in_one_line(algo: str) -> None:
    sections = get_algorithm_spec(algo).sections
    message = (
        r"^algo_kwargs\.policy_distribution must be 'tanh' or 'gaussian', got 'normal'$"
        if algo in CLONERS
        else r"^algo_kwargs: unknown key 'policy_distribution'"
    )
    with pytest.raises(ConfigError, match=message):
        sections.resolve({"policy_distribution": "normal"})


@pytest.mark.parametrize("algo", ["bc", "iql"])
def test_discrete_actions_do_not_have_the_setting(algo: str, tmp_path: Path) -> None:
    kwargs = {"policy_distribution": "gaussian"}
    config = tiny(algo, tmp_path, kwargs=kwargs, env_id="CartPole-v1", eval_episodes=0)
    message = rf"^algo_kwargs\.policy_distribution: {algo} has no such setting on discrete actions; leave it out$"
    with pytest.raises(ConfigError, match=message):
        train(config)
    assert not any(tmp_path.iterdir())


def test_models_and_learners_must_agree() -> None:
    for model in (MLPSACModel, MLPBCModel, MLPIQLModel):
        with pytest.raises(ConfigError, match=r"^policy_distribution must be 'tanh' or 'gaussian', got 'normal'$"):
            model(OBS, ACTIONS, (8,), policy_distribution="normal")  # type: ignore[arg-type]
    plain = MLPSACModel(OBS, ACTIONS, (8,), policy_distribution="gaussian")
    assert CRR(model=plain).config.policy_distribution == "gaussian"
    with pytest.raises(ConfigError, match=r"^policy_distribution must equal the model's gaussian, got tanh$"):
        CRR(model=plain, policy_distribution="tanh")
    with pytest.raises(
        ConfigError, match=r"^sac needs a model whose policy_distribution is 'tanh', got 'gaussian'$"
    ):
        SAC(model=plain)
