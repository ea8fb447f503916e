"""Requirements on every exported learner."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import annotated_types
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rl_training.algorithms as algorithms
from rl_training.algorithms import SAC, Learner
from rl_training.algorithms.base import names_of
from rl_training.algorithms.execution import Execution
from rl_training.algorithms.optim import Adam, apply_lists
from rl_training.data.transitions import TransitionBatch
from rl_training.models import MLPQNetwork
from tests.helpers import ACTIONS, CHOICES, OBS, all_learners, build, label, random_batch, snapshot
from tests.runs import mostly_slow

LEARNERS = all_learners()
UPDATES = 4  # goes through every variant of the small learners twice
SOFT = ("critic_loss", "actor_loss", "target_q_mean", "entropy_term")
CLONING = (
    *("critic_loss", "actor_loss", "target_q_mean"),
    *("advantage_mean", "advantage_weight_mean", "small_weight_share", "behavior_logprob_mean"),
)
METRICS = {
    "dqn": ("loss", "q_mean", "target_q_mean"),
    "ddpg": ("critic_loss", "actor_loss", "target_q_mean"),
    "td3": ("critic_loss", "actor_loss", "target_q_mean"),
    "sac": SOFT,
    "tqc": SOFT,
    "redq": SOFT,
    "rlpd": SOFT,
    "edac": (*SOFT, "critic_mse_loss", "diversity_loss", "q_data_std", "q_policy_std"),
    "awac": CLONING,
    "crr": CLONING,
}


@pytest.fixture(params=LEARNERS, ids=label)
def learner_class(request: pytest.FixtureRequest) -> type[Learner]:
    chosen: type[Learner] = request.param
    return chosen


@pytest.fixture
def learner(learner_class: type[Learner]) -> Any:
    return build(learner_class)


# For behaviour of the base class: one learner of each regime, and one with next actions.
few_learners = pytest.mark.parametrize(
    "learner_class",
    mostly_slow(LEARNERS, algorithms.DQN, algorithms.SAC, algorithms.IQL, algorithms.ReBRAC, algorithms.RLPD),
    ids=label,
)


def batch_for(learner: Learner | type[Learner], **options: Any) -> TransitionBatch:
    return random_batch(discrete=learner.discrete, **options)


def update(learner: Learner, times: int = 1, **options: Any) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = {}
    for i in range(times):
        metrics = learner.update(batch_for(learner, seed=i, **options), global_step=i).metrics
    return metrics


def tensors(learner: Learner) -> dict[str, Tensor]:
    state = learner.state_dict()
    return {**state["networks"], **{f"optimizer {k}": v for k, v in state["optimizers"].items()}}


def test_the_first_six_learners_are_exported() -> None:
    assert {"dqn", "ddpg", "td3", "sac", "tqc", "redq"} <= {learner.name for learner in LEARNERS}


def test_an_update_changes_only_its_own_parameters(learner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors of each active optimiser change, targets move by `tau`, and all others stay the same."""
    calls: list[tuple[set[str], dict[nn.Module, nn.Module], float | None]] = []
    minimize = learner.minimize

    def spy(inputs: Any, objectives: Any, *, tau: float | None = None) -> Any:
        calls.append((set(chain(*names_of(objectives))), {} if tau is None else learner.targets(), tau))
        return minimize(inputs, objectives, tau=tau)

    monkeypatch.setattr(learner, "minimize", spy)
    moved_ever: set[int] = set()
    statistics = {id(buffer) for own in learner.statistics().values() for buffer in own}
    for i in range(UPDATES):
        calls.clear()
        held = [t for m in learner.modules().values() for t in (*m.parameters(), *m.buffers())]
        before = {id(t): t.detach().clone() for t in held}
        learner.update(batch_for(learner, seed=i), global_step=i)
        free = {id(t) for t in held if id(t) not in statistics}
        for objectives, targets, tau in calls:
            for name in objectives:
                for parameter in learner.optimizers[name].parameters:
                    assert not torch.equal(parameter, before[id(parameter)]), name
                    free.discard(id(parameter))
                    moved_ever.add(id(parameter))
            for target, source in targets.items():
                for t, s in zip(target.parameters(), source.parameters()):
                    followed = before[id(s)] if learner.targets_first else s.detach()
                    torch.testing.assert_close(t, before[id(t)].lerp(followed, tau), rtol=1e-6, atol=1e-7)
                    free.discard(id(t))
        assert all(torch.equal(t, before[id(t)]) for t in held if id(t) in free)
        assert all(t.grad is None for t in held)
    owned = [p for optimizer in learner.optimizers.values() for p in optimizer.parameters]
    assert moved_ever == {id(p) for p in owned}
    assert len(owned) == len(moved_ever), "a parameter has two optimisers"
    trainable = {id(p) for m in learner.modules().values() for p in m.parameters() if p.requires_grad}
    assert trainable == moved_ever


def test_both_ways_to_step_agree(learner_class: type[Learner]) -> None:
    """Torch's fused CPU kernel and the list operations for GPUs, for any layout of gradients."""
    learners = [build(learner_class) for _ in range(2)]
    learners[1].execution = Execution(apply=apply_lists)
    for learner in learners:
        learner.seed(0)
        update(learner, UPDATES)
    first, second = (tensors(learner) for learner in learners)
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("stepped", [("critics",), ("critics", "actor")])
def test_a_target_follows_its_source_for_any_optimiser(
    stepped: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one, none or several optimisers step its source, the target follows the result."""
    learner, batch = build(algorithms.TD3), batch_for(algorithms.TD3)
    model, noise = learner.model, torch.zeros_like(batch.actions)
    both, copied = nn.ModuleList([model.critics, model.actor]), nn.ModuleList()
    copied.extend(copy.deepcopy(both).requires_grad_(False))
    losses = {"critics": learner.critic_loss, "actor": learner.actor_loss}
    targets = {model.target_critics: model.critics, model.target_actor: model.actor, copied: both}
    with torch.no_grad():
        model.target_actor.net.head.bias.add_(1.0)
    monkeypatch.setattr(learner, "targets", lambda: targets)
    learner.minimize((batch, noise), {name: losses[name] for name in stepped}, tau=1.0)
    for target, source in targets.items():
        for t, s in zip(target.parameters(), source.parameters()):
            assert torch.equal(t, s)


def test_every_network_without_gradient_is_a_declared_target_and_starts_as_its_source(learner: Any) -> None:
    targets = learner.targets()
    held = {id(p) for module in targets for p in module.parameters()}
    assert held == {id(p) for m in learner.modules().values() for p in m.parameters() if not p.requires_grad}
    for target, source in targets.items():
        for t, s in zip(target.parameters(), source.parameters(), strict=True):
            assert torch.equal(t, s)


@pytest.mark.parametrize("activation", mostly_slow(["tanh", "silu"], "tanh"))
def test_every_learner_takes_an_activation(learner_class: type[Learner], activation: str) -> None:
    options = {"eta": 0.0} if learner_class.name == "edac" else {}
    plain, other = (
        build(learner_class, **options),
        build(learner_class, network={"activation": activation}, **options),
    )
    ours, theirs = snapshot(plain), snapshot(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    obs = torch.randn(20, OBS)
    if not learner_class.discrete:
        assert not torch.equal(plain.model.policy.mode(obs), other.model.policy.mode(obs))
    assert all(term.isfinite() for term in update(other, UPDATES).values())


# BC has no critic; CrossQ and FlashSAC have their own normalisation.
@pytest.mark.parametrize("learner_class", [c for c in LEARNERS if c.name not in ("bc", "crossq", "flash_sac")])
def test_every_learner_takes_layer_norm(learner_class: type[Learner]) -> None:
    """In the networks that value, never in an actor."""
    options: dict[str, Any] = {"eta": 0.0} if learner_class.name == "edac" else {}
    in_network = "layer_norm" in learner_class.Network.model_fields
    section = {"network": {"layer_norm": True}} if in_network else {"layer_norm": True}
    learner = build(learner_class, **section, **options)
    places = {"model.critics", "model.target_critics", "model.value"}
    if learner_class.Model is MLPQNetwork:  # which is also what acts
        places = {"model.actor", "model.target"}
    norms = {name.partition(".net.")[0] for name in learner.state_dict()["networks"] if ".norms." in name}
    assert norms == places & {name.partition(".net.")[0] for name in learner.state_dict()["networks"]}
    assert all(term.isfinite() for term in update(learner, UPDATES).values())


def test_every_setting_is_documented(learner_class: type[Learner]) -> None:
    for section in (learner_class.Config, learner_class.Network):
        for key, field in section.model_fields.items():
            assert field.description, key
            assert "\n" not in field.description, key


def test_settings_of_adam_reach_the_step(learner: Any) -> None:
    name, optimizer = next(iter(learner.optimizers.items()))
    decayed = Adam(optimizer.parameters, 1e-3, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1)
    same = learner.adam(learner.model.actor, learning_rate=1e-3, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1)
    assert decayed.settings == same.settings == ((0.8, 0.9), 1e-4, 0.1)
    learner.optimizers[name] = decayed
    assert all(term.isfinite() for term in update(learner, UPDATES).values())


def test_a_parameter_of_several_modules_is_stepped_once() -> None:
    learner, shared = build(SAC), nn.Linear(OBS, 1)
    modules = nn.Sequential(shared, nn.Linear(1, 2)), nn.Sequential(shared, nn.Linear(1, 3)), shared
    other = copy.deepcopy(modules)
    optimizer, reference = learner.adam(*modules), torch.optim.Adam(nn.ModuleList(other).parameters(), lr=3e-4)
    for parts in (modules, other):
        sum(part(torch.ones(4, OBS)).square().sum() for part in parts).backward()
    with torch.no_grad():
        learner.execution.apply(optimizer.group([p.grad for p in optimizer.parameters]), ())
    reference.step()
    for one, two in zip(nn.ModuleList(modules).parameters(), nn.ModuleList(other).parameters(), strict=True):
        torch.testing.assert_close(one, two)


@few_learners
def test_every_change_of_the_networks_increments_their_version(learner: Any) -> None:
    versions = [learner.version]
    for change in (
        lambda: update(learner),
        lambda: learner.load_state_dict(copy.deepcopy(learner.state_dict())),
        lambda: learner.load_networks(snapshot(learner)),
    ):
        change()
        versions.append(learner.version)
    assert versions == sorted(set(versions))


@few_learners
def test_an_exception_inside_a_step_marks_the_learner_as_interrupted(
    learner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copy.deepcopy(learner.state_dict())
    update(learner)
    assert not learner.step_interrupted

    def fails(*arguments: Any) -> Any:
        raise MemoryError

    for owner, part, torn in ((learner, "_gradients", False), (learner.execution, "apply", True)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, part, fails)
            with pytest.raises(MemoryError):
                update(learner)
        assert learner.step_interrupted == torn, part
    learner.load_state_dict(whole)
    assert not learner.step_interrupted


def test_terms_are_finite_scalars_with_the_promised_names(learner: Any) -> None:
    result = learner.update(batch_for(learner), global_step=0)
    assert result.num_gradient_steps == 1
    assert set(METRICS.get(learner.name, ())) <= set(result.metrics)
    for name, term in update(learner, UPDATES).items():
        assert isinstance(term, Tensor), name
        assert term.shape == (), name
        assert term.isfinite(), name
        assert not term.requires_grad, name


def test_everything_is_float32(learner: Any) -> None:
    metrics = update(learner, UPDATES)
    for name, tensor in (tensors(learner) | metrics).items():
        assert tensor.dtype == torch.float32, name


def test_a_restored_learner_makes_an_identical_update(learner: Any) -> None:
    update(learner, 3)
    restored = build(type(learner), seed=99)
    restored.load_state_dict(copy.deepcopy(learner.state_dict()))
    restored.generator.set_state(learner.generator.get_state())
    assert restored.updates == 3
    last = batch_for(learner, seed=7)
    first_metrics, second_metrics = (x.update(last, global_step=3).metrics for x in (learner, restored))
    ours, theirs = tensors(learner), tensors(restored)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    assert first_metrics.keys() == second_metrics.keys()


def test_the_same_seed_gives_the_same_update(learner_class: type[Learner]) -> None:
    first, second = build(learner_class), build(learner_class)
    update(first, UPDATES)
    update(second, UPDATES)
    ours, theirs = tensors(first), tensors(second)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("learner_class", [c for c in LEARNERS if "alpha" in c.Config.model_fields])
def test_every_soft_learner_can_learn_its_temperature(learner_class: type[Learner]) -> None:
    """With entropy far above the goal alpha falls, and it survives a restart."""
    learner = build(learner_class, alpha="auto", initial_alpha=0.5, target_entropy=-50.0)
    update(learner, UPDATES)
    alpha = learner.temperature.alpha()
    assert 0 < float(alpha) < 0.5
    restored = build(learner_class, alpha="auto", seed=99)
    restored.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert torch.equal(restored.temperature.alpha(), alpha)


def test_updating_leaves_torch_s_global_randomness_alone(learner: Any) -> None:
    before = torch.get_rng_state()
    update(learner, UPDATES)
    assert torch.equal(torch.get_rng_state(), before)


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The error message of a call that must raise."""
    try:
        call(*arguments, **options)
    except ValueError as error:
        return str(error)
    return "accepted"


def _out_of_range(learner: type[Learner]) -> Iterator[tuple[str, Any, str]]:
    """For every bounded field of a learner a value beyond each bound, and the sign in the message."""
    for field, info in learner.Config.model_fields.items():
        for bound in info.metadata:
            match bound:
                case annotated_types.Ge(ge=limit):
                    yield field, limit - 1, ">="
                case annotated_types.Gt(gt=limit):
                    yield field, limit, ">"
                case annotated_types.Le(le=limit):
                    yield field, limit + 1, "<="
                case annotated_types.Lt(lt=limit):
                    yield field, limit, "<"


def test_a_value_out_of_range_is_named(learner_class: type[Learner]) -> None:
    model = build(learner_class).model
    cases = [*_out_of_range(learner_class)]
    said = [refusal(learner_class, model=model, **{field: value}) for field, value, _ in cases]
    wanted = [rf"{field} must be {sign} [\d.]+, got {value}" for field, value, sign in cases]
    assert cases
    assert [case for case, words, form in zip(cases, said, wanted) if not re.fullmatch(form, words)] == []


def test_the_form_of_the_message() -> None:
    with pytest.raises(ValueError, match=r"^subset_size must be >= 1, got 0$"):
        algorithms.REDQ(model=build(algorithms.REDQ).model, subset_size=0)


@few_learners
def test_a_learning_rate_that_is_not_a_number_is_refused(learner_class: type[Learner]) -> None:
    model = build(learner_class).model
    for value in (math.nan, math.inf, "3e-4", None, True):
        said = refusal(learner_class, model=model, learning_rate=value)
        assert re.match(r"learning_rate must be a (finite )?number, got ", said), value


@few_learners
def test_an_unknown_hyperparameter_is_refused_with_the_nearest_name(learner_class: type[Learner]) -> None:
    with pytest.raises(ValueError, match=r"^unknown key 'learning_rat'; did you mean 'learning_rate'"):
        learner_class(model=build(learner_class).model, learning_rat=0.1)


@pytest.mark.parametrize("learner_class", [c for c in LEARNERS if "num_critics" in c.Config.model_fields])
def test_a_model_with_another_number_of_critics_is_refused(learner_class: type[Learner]) -> None:
    model = build(learner_class).model
    with pytest.raises(ValueError, match=f"^num_critics must equal the model's {model.num_critics}, got 4$"):
        learner_class(model=model, num_critics=4)


@few_learners
def test_the_model_is_given_by_name(learner_class: type[Learner]) -> None:
    with pytest.raises(TypeError):
        learner_class(build(learner_class).model)  # type: ignore[misc]


@few_learners
def test_a_missing_column_is_refused_in_one_line(learner: Any) -> None:
    whole = batch_for(learner)._asdict()
    for name in ("obs", "actions", "rewards", "next_obs", "dones"):
        batch = {key: column for key, column in whole.items() if key != name}
        said = refusal(learner.update, batch, global_step=0)
        assert f"missing column '{name}'" in said
        assert "\n" not in said


@few_learners
def test_scalars_are_flat(learner: Any) -> None:
    """`[B, 1]` would broadcast against `[B]` to a silent `[B, B]`."""
    batch = batch_for(learner)._asdict()
    for name in ("rewards", "dones"):
        said = refusal(learner.update, batch | {name: batch[name][:, None]}, global_step=0)
        assert f"{name} must have shape (16,), got (16, 1)" in said


@few_learners
def test_columns_of_different_length_are_refused(learner: Any) -> None:
    batch = batch_for(learner)._asdict()
    for name in ("actions", "next_obs"):
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            learner.update(batch | {name: batch[name][:-1]}, global_step=0)


@few_learners
def test_a_batch_is_given_as_it_is_or_by_its_columns(learner_class: type[Learner]) -> None:
    batch = batch_for(learner_class)
    whole, by_columns = build(learner_class), build(learner_class)
    whole.update(batch, global_step=0)
    by_columns.update(batch._asdict(), global_step=0)
    ours, theirs = tensors(whole), tensors(by_columns)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@few_learners
def test_observations_of_another_width_are_refused(learner: Any) -> None:
    batch = batch_for(learner)
    wide = batch._replace(obs=torch.zeros(16, OBS + 2), next_obs=torch.zeros(16, OBS + 2))
    with pytest.raises(ValueError, match=rf"^batch: obs must have {OBS} components, got {OBS + 2}$"):
        learner.update(wide, global_step=0)
    assert learner.updates == 0


def test_a_batch_with_too_few_rows_is_refused(learner: Any) -> None:
    least = learner.least_batch
    whole = batch_for(learner)
    few = whole._make(None if column is None else column[: least - 1] for column in whole)
    with pytest.raises(ValueError, match=rf"^batch: needs at least {least} rows, got {least - 1}$"):
        learner.update(few, global_step=0)
    assert learner.updates == 0


@few_learners
def test_actions_of_another_width_are_refused(learner: Any) -> None:
    actions = torch.zeros(16, ACTIONS + 1)
    wide = batch_for(learner)._replace(actions=actions, next_actions=actions)
    with pytest.raises(ValueError, match=r"^batch: actions must .*shape \(16,"):
        learner.update(wide, global_step=0)
    assert learner.updates == 0


def test_actions_outside_their_range_are_refused(learner: Any) -> None:
    batch = batch_for(learner)
    for value in (CHOICES, -1) if learner.discrete else (2.0, -1.01, math.nan, -math.inf):
        message = rf"batch: action {value:g} is outside \[-1, 1\]; scale them.*"
        if learner.discrete:
            message = rf"batch: action {value:g} is outside 0\.\.{CHOICES - 1}; number them from 0"
        actions = batch.actions.clone()
        actions[3] = value
        said = refusal(learner.update, batch._replace(actions=actions), global_step=0)
        assert re.fullmatch(message, said), value
    assert learner.updates == 0


@few_learners
def test_actions_at_their_bounds_are_accepted(learner: Any) -> None:
    batch = batch_for(learner)
    ends = (0, CHOICES - 1) if learner.discrete else (-1.0 - 1e-7, 1.0 + 1e-7)
    batch.actions[0], batch.actions[1] = ends
    learner.update(batch, global_step=0)
    assert learner.updates == 1


@few_learners
def test_a_batch_on_another_device_is_refused(learner: Any) -> None:
    """`meta` is a device every machine has; nothing can be read from it."""
    elsewhere = batch_for(learner)._asdict()
    elsewhere["rewards"] = elsewhere["rewards"].to("meta")
    with pytest.raises(ValueError, match=r"^batch: rewards is on meta, the learner on cpu; move it with \.to"):
        learner.update(elsewhere, global_step=0)
    assert learner.updates == 0


@few_learners
def test_a_negative_step_is_refused(learner: Any) -> None:
    with pytest.raises(ValueError, match="global_step must be >= 0, got -1"):
        learner.update(batch_for(learner), global_step=-1)


@few_learners
def test_numpy_columns_of_other_types_give_the_same_update(learner_class: type[Learner]) -> None:
    batch = batch_for(learner_class)._asdict()
    numpy: Mapping[str, Any] = {name: column.numpy() for name, column in batch.items() if column is not None}
    plain, converted = build(learner_class), build(learner_class)
    plain.update(batch, global_step=0)
    wide = {name: numpy[name].astype(np.float64) for name in ("obs", "rewards", "next_obs")}
    converted.update({**numpy, **wide, "dones": numpy["dones"].astype(bool)}, global_step=0)
    ours, theirs = tensors(plain), tensors(converted)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_policy_is_legal_for_any_observation(learner: Any) -> None:
    for scale in (0.0, 1.0, 1e4):
        actions = learner.model.policy.mode(scale * torch.randn(50, OBS))
        if learner.discrete:
            assert actions.shape == (50,), scale
            assert set(actions.tolist()) <= set(range(CHOICES)), scale
        else:
            assert actions.shape == (50, ACTIONS), scale
            assert actions.dtype == torch.float32, scale
            assert actions.abs().max() <= 1, scale


def test_exploration_is_legal_and_repeats_with_its_generator(learner: Any) -> None:
    obs = torch.randn(200, OBS)
    explore = [
        learner.explore(learner.model.policy, obs, np.random.default_rng(3), progress=0.01) for _ in range(2)
    ]
    assert torch.equal(*explore)
    if learner.discrete:
        assert set(explore[0].tolist()) <= set(range(CHOICES))
    else:
        assert explore[0].shape == (200, ACTIONS)
        assert explore[0].abs().max() <= 1


# BC has no critic; FlashSAC clips the values of its target distribution, whose mean is then not linear in gamma.
@pytest.mark.parametrize("learner_class", [c for c in LEARNERS if c.name not in ("bc", "flash_sac")])
def test_time_limits_bootstrap_and_terminations_do_not(learner_class: type[Learner]) -> None:
    """The target is r if the episode terminated and r + gamma V otherwise, with the same V."""

    def target(done: float, gamma: float) -> float:
        batch = batch_for(learner_class, done=done)
        return float(build(learner_class, gamma=gamma).update(batch, global_step=0).metrics["target_q_mean"])

    rewards = float(batch_for(learner_class).rewards.mean())
    assert target(1.0, 1.0) == pytest.approx(rewards, abs=1e-6)
    value = target(0.0, 1.0) - rewards
    assert abs(value) > 1e-3
    assert target(0.0, 0.5) == pytest.approx(rewards + 0.5 * value, abs=1e-5)


def test_the_learning_rate_can_be_scaled_while_training(learner_class: type[Learner]) -> None:
    """Adam's first step is the learning rate itself, so half the rate is half the way."""
    # The critics of FlashSAC would see the step of the actor.
    options: dict[str, Any] = {"actor_starts": 1} if learner_class.name == "flash_sac" else {}
    whole, half = (build(learner_class, **options) for _ in range(2))
    half.set_learning_rates([0.5 * o.base_learning_rate for o in half.scheduled_optimizers()])
    for name, optimizer in half.optimizers.items():
        scheduled = half.scheduled is None or name in half.scheduled
        share = 0.5 if scheduled else 1.0
        assert float(optimizer.learning_rate) == pytest.approx(share * optimizer.base_learning_rate)
    for optimizer in (*whole.optimizers.values(), *half.optimizers.values()):
        optimizer.spheres = []  # a projection would shorten the way
    start = snapshot(whole)
    update(whole)
    update(half)
    name = next(name for name in half.optimizers if half.scheduled is None or name in half.scheduled)
    moved = {id(p) for p in whole.optimizers[name].parameters}
    for key, parameter in whole.model.named_parameters():
        if id(parameter) in moved:
            full = parameter - start[f"model.{key}"]
            part = dict(half.model.named_parameters())[key] - start[f"model.{key}"]
            torch.testing.assert_close(part, 0.5 * full, atol=1e-7, rtol=1e-3)


def test_observations_are_normalised_inside(learner_class: type[Learner]) -> None:
    """A learner that normalises does to raw data what a plain one does to normalised data."""
    mean, std = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, 0.5, 3.0])
    inside, plain = build(learner_class, normalize=True), build(learner_class)
    inside.model.normalizer.set_moments(mean, std)
    for i in range(UPDATES):
        raw = batch_for(learner_class, seed=i)
        inside.update(raw, global_step=i)
        seen = inside.model.normalizer
        plain.update(raw._replace(obs=seen(raw.obs), next_obs=seen(raw.next_obs)), global_step=i)
    ours, theirs = snapshot(inside), snapshot(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_every_learner_has_its_alias_and_its_loss(learner_class: type[Learner]) -> None:
    assert getattr(algorithms, f"{learner_class.__name__}Algorithm") is learner_class
    assert f"{learner_class.__name__}Algorithm" in algorithms.__all__
    assert callable(getattr(algorithms, f"{learner_class.name}_loss"))
    assert f"{learner_class.name}_loss" in algorithms.__all__
