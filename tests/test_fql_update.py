"""FQL: every term by hand, and twenty updates against an independent reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn, tensor

from benchmarks.parity.lockstep import LEARNING_RATE, float64, random_batches
from rl_training.algorithms import FQL, fql, fql_loss
from rl_training.data.transitions import TransitionBatch
from rl_training.models import MLPFQLModel, OneStepActor
from tests.helpers import ACTIONS, CONTINUOUS, OBS, build, member, random_batch, sequential, snapshot

ACTOR_SIZES, CRITIC_SIZES = (12, 10, 8), (14, 10, 8)
SETTINGS: dict[str, Any] = {
    "learning_rate": LEARNING_RATE,
    "gamma": 0.9,
    "tau": 0.05,
    "distill_coef": 3.0,
    "flow_steps": 4,
}
TERMS: dict[str, Any] = {
    "q1_values": tensor([1.0, 2.0]),
    "q2_values": tensor([0.0, 0.0]),
    "rewards": tensor([1.0, 5.0]),
    "dones": tensor([0.0, 1.0]),
    "next_q1": tensor([8.0, 100.0]),
    "next_q2": tensor([4.0, 100.0]),
    "policy_q1": tensor([2.0, -5.0]),
    "policy_q2": tensor([4.0, -7.0]),
    "policy_actions": tensor([[0.0, 3.0], [1.0, 1.0]]),
    "flow_actions": tensor([[0.0, 1.0], [0.0, 0.0]]),
    "velocities": tensor([[1.0, 0.0], [0.0, 0.0]]),
    "start": tensor([[0.5, 0.0], [0.0, 2.0]]),
    "actions": tensor([[0.5, 1.0], [1.0, 1.0]]),
    "gamma": 0.5,
    "distill_coef": 10.0,
    "q_aggregation": "mean",
    "normalize_q_loss": False,
}


def test_every_term_by_hand() -> None:
    terms = {name: term.item() for name, term in fql_loss(TERMS).items()}
    assert terms == pytest.approx(
        {
            "target_q_mean": (1 + 0.5 * 6 + 5) / 2,
            "critic_loss": ((9 + 9) / 2 + (16 + 25) / 2) / 2,  # the mean of both critics
            "flow_loss": (1 + 1 + 1 + 1) / 4,  # from [0, 1] and [1, -1]
            "distill_loss": (4 + 1 + 1) / 4,  # the policy's action is not clipped
            "q_scale": 1.0,
            "actor_loss": 10 * 1.5 - (3 - 6) / 2,
        }
    )


def test_the_smaller_target_critic_and_the_normalised_value() -> None:
    terms = {name: t.item() for name, t in fql_loss(TERMS | {"q_aggregation": "min"}).items()}
    assert terms["target_q_mean"] == (1 + 0.5 * 4 + 5) / 2
    assert terms["actor_loss"] == 10 * 1.5 - (3 - 6) / 2  # the actor maximises the mean
    terms = {name: t.item() for name, t in fql_loss(TERMS | {"normalize_q_loss": True}).items()}
    assert terms["q_scale"] == pytest.approx(1 / 4.5)  # |3| and |-6|
    assert terms["actor_loss"] == pytest.approx(10 * 1.5 - (3 - 6) / 2 / 4.5)


def test_the_scale_of_q_has_no_gradient() -> None:
    q = tensor([3.0, -6.0], requires_grad=True)
    loss = fql_loss(TERMS | {"policy_q1": q, "policy_q2": q, "normalize_q_loss": True})["actor_loss"]
    torch.testing.assert_close(torch.autograd.grad(loss, q)[0], torch.full((2,), -1 / (2 * 4.5)))


# An independent reference: the whole update on `torch.nn` modules, one Adam and plain expressions.


class Reference:
    """FQL as its paper and its authors' code describe it."""

    def __init__(self, model: MLPFQLModel, q_aggregation: str, normalize_q_loss: bool) -> None:
        self.critics = [member(model.critics.net, i) for i in (0, 1)]
        self.targets = [member(model.target_critics.net, i) for i in (0, 1)]
        self.flow, self.actor = sequential(model.flow), sequential(model.actor.net)
        self.q_aggregation, self.normalize_q_loss = q_aggregation, normalize_q_loss
        modules = (*self.critics, self.flow, self.actor)
        self.adam = torch.optim.Adam([p for one in modules for p in one.parameters()], lr=LEARNING_RATE)

    def update(self, batch: TransitionBatch, next_noise: Tensor, x0: Tensor, z: Tensor, t: Tensor) -> None:
        s, a, s2, size = batch.obs, batch.actions.clip(-0.99999, 0.99999), batch.next_obs, len(batch.obs)
        with torch.no_grad():
            a2 = self.actor(torch.cat([s2, next_noise], 1)).clip(-1, 1)
            q2 = [target(torch.cat([s2, a2], 1))[:, 0] for target in self.targets]
            value = torch.minimum(*q2) if self.q_aggregation == "min" else (q2[0] + q2[1]) / 2
            y = batch.rewards + 0.9 * (1 - batch.dones) * value
            action = z
            for i in range(4):
                action = action + 0.25 * self.flow(torch.cat([s, action, torch.full((size, 1), i / 4)], 1))
            flow_action = action.clip(-1, 1)
        critic_loss = sum(((critic(torch.cat([s, a], 1))[:, 0] - y) ** 2).mean() for critic in self.critics) / 2
        velocity = self.flow(torch.cat([s, (1 - t) * x0 + t * a, t], 1))
        flow_loss = ((velocity - (a - x0)) ** 2).mean()
        own = self.actor(torch.cat([s, z], 1))
        for critic in self.critics:
            critic.requires_grad_(False)
        q = sum(critic(torch.cat([s, own.clip(-1, 1)], 1))[:, 0] for critic in self.critics) / 2
        for critic in self.critics:
            critic.requires_grad_(True)
        q_loss = -q.mean() / (q.abs().mean().detach() if self.normalize_q_loss else 1.0)
        loss = critic_loss + flow_loss + 3.0 * ((own - flow_action) ** 2).mean() + q_loss
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():  # from the critics before their step
            for critic, target in zip(self.critics, self.targets):
                for p, q_bar in zip(critic.parameters(), target.parameters()):
                    q_bar.copy_(0.05 * p + 0.95 * q_bar)
        self.adam.step()

    def modules(self) -> list[nn.Module]:
        return [*self.critics, *self.targets, self.flow, self.actor]


def ours(model: MLPFQLModel) -> list[nn.Module]:
    critics = [member(part.net, i) for part in (model.critics, model.target_critics) for i in (0, 1)]
    return [*critics, sequential(model.flow), sequential(model.actor.net)]


def distance(
    q_aggregation: str = "mean",
    normalize_q_loss: bool = False,
    critics: dict[str, Any] | None = None,
    updates: int = 20,
    **changes: Any,
) -> float:
    """The largest difference of a parameter, relative to the largest of its tensor, after some updates.

    `critics` and `changes` are attributes of our critics and settings of ours that the reference does not have.
    """
    with float64():
        torch.manual_seed(0)
        options: dict[str, Any] = {"activation": "gelu_tanh", "layer_norm": True}
        model = MLPFQLModel(OBS, ACTIONS, ACTOR_SIZES, critic_hidden_sizes=CRITIC_SIZES, **options)
        for tensor_ in model.parameters():  # no bias is 0, no gain 1, and a target differs from its critic
            tensor_.data += 0.2 * torch.randn_like(tensor_)
        reference = Reference(model, q_aggregation, normalize_q_loss)
        for name, value in (critics or {}).items():
            setattr(model.critics.net, name, value)
        settings = SETTINGS | {"q_aggregation": q_aggregation, "normalize_q_loss": normalize_q_loss} | changes
        learner = FQL(model=model, **settings)
        for batch in random_batches()[:updates]:
            batch = batch._replace(actions=(1.5 * batch.actions).clamp(-1, 1))
            size = len(batch.obs)
            noise, times = 1.5 * torch.randn(3, size, ACTIONS), torch.rand(size, 1)
            draws = iter([noise, times])
            learner.execution.draw = lambda kind, shape, generator, left=draws: next(left)
            learner.step(batch)
            reference.update(batch, *noise, times)
        pairs = zip(ours(model), reference.modules(), strict=True)
        each = [pair for mine, other in pairs for pair in zip(mine.parameters(), other.parameters(), strict=True)]
        return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in each)


@pytest.mark.parametrize("normalize_q_loss", [False, True])
@pytest.mark.parametrize("q_aggregation", ["mean", "min"])
def test_twenty_updates_equal_the_reference(q_aggregation: str, normalize_q_loss: bool) -> None:
    assert distance(q_aggregation, normalize_q_loss) < 1e-12


def euler(times: Callable[[int, int], float], low: float = -1.0) -> Callable[..., Tensor]:
    """`flow_actions` with other times or bounds."""

    def actions(model: MLPFQLModel, obs: Tensor, noise: Tensor, steps: int) -> Tensor:
        for i in range(steps):
            t = torch.full_like(noise[:, :1], times(i, steps))
            noise = noise + model.flow(torch.cat([obs, noise, t], -1)) / steps
        return noise.clamp(low, -low)

    return actions


def clipped_before(learner: FQL, batch: TransitionBatch, noise: Tensor, times: Tensor) -> Any:
    """`actor_loss` whose imitation compares the clipped action."""
    whole = learner.model.actor.forward
    with patch.object(learner.model.actor, "forward", lambda *seen: whole(*seen).clamp(-1, 1)):
        return PLAIN_ACTOR_LOSS(learner, batch, noise, times)


SEEN_AFTER = 6  # updates; the more there are, the larger a difference grows
PLAIN_ACTOR_LOSS = FQL.actor_loss
PATCHES: dict[str, tuple[Any, str, Any]] = {
    "targets after the step": (FQL, "targets_first", False),
    "a' is not clipped": (OneStepActor, "sample", OneStepActor.forward),
    "imitation of the clipped action": (FQL, "actor_loss", clipped_before),
    "the flow's action is not clipped": (MLPFQLModel, "flow_actions", euler(lambda i, n: i / n, -100.0)),
    "times of the right ends": (MLPFQLModel, "flow_actions", euler(lambda i, n: (i + 1) / n)),
    "times one per cent larger": (MLPFQLModel, "flow_actions", euler(lambda i, n: 1.01 * i / n)),
    "data actions not clipped": (fql, "ACTION_LIMIT", 1.0),
}


@pytest.mark.parametrize("mistake", PATCHES)
def test_a_planted_mistake_is_seen(mistake: str) -> None:
    with patch.object(*PATCHES[mistake]):
        assert distance(updates=SEEN_AFTER) > 1e-7


@pytest.mark.parametrize(
    "changes",
    [
        {"distill_coef": 3.03},
        {"gamma": 0.909},
        {"tau": 0.0505},
        {"flow_steps": 5},
        {"learning_rate": 1.01 * LEARNING_RATE},
    ],
    ids=str,
)
def test_a_setting_that_is_one_per_cent_off_is_seen(changes: dict[str, Any]) -> None:
    assert distance(updates=SEEN_AFTER, **changes) > 1e-6


@pytest.mark.parametrize("difference", [{"norm_after_activation": False}, {"activation": "gelu"}], ids=str)
def test_a_network_that_differs_is_seen(difference: dict[str, Any]) -> None:
    assert distance(critics=difference, updates=SEEN_AFTER) > 1e-5


def test_each_loss_moves_its_own_network() -> None:
    learner, batch = build(FQL), random_batch()
    noise, times = torch.randn(3, 16, ACTIONS), torch.rand(16, 1)
    parts = {"critics": learner.critic_loss, "flow": learner.flow_loss, "actor": learner.actor_loss}
    for own, loss in parts.items():
        value, _ = loss(batch, noise, times)
        for name in parts:
            gradients = torch.autograd.grad(
                value, list(getattr(learner.model, name).parameters()), allow_unused=True, retain_graph=True
            )
            assert all((gradient is None) == (name != own) for gradient in gradients)


def test_the_authors_networks() -> None:
    network = FQL.Network()
    model: Any = FQL.build_model(CONTINUOUS, network, FQL.Config())
    assert isinstance(model, MLPFQLModel)
    widths = [512] * 4
    for net, inputs in ((model.actor.net, OBS + ACTIONS), (model.flow, OBS + ACTIONS + 1)):
        assert [layer.weight.shape[1:] for layer in net.hidden] == [*zip([inputs, *widths], widths)]
        assert len(net.norms) == 0
    for critics in (model.critics, model.target_critics):
        assert [norm.weight.shape for norm in critics.net.norms] == [(2, 1, 512)] * 4
        assert critics.net.norms[0].epsilon == 1e-6
    for net in (model.actor.net, model.flow, model.critics.net):
        assert net.activation == "gelu_tanh"
        for layer in (*net.hidden, net.head):  # uniform with variance 1 / mean(fan_in, fan_out), biases 0
            bound = math.sqrt(6.0 / sum(layer.weight.shape[1:]))
            assert 0.8 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()
    x = torch.tensor([-1.3, 0.2, 0.7])
    expected = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    torch.testing.assert_close(model.flow.activate(x), tensor(expected))


def test_flow_matching_and_imitation_learn_two_modes() -> None:
    """Half of the data act at -0.5, half at 0.5; the mean, 0, would be an action of neither."""
    learner = build(FQL, learning_rate=5e-3, distill_coef=100.0, flow_steps=5, network={"hidden_sizes": (64, 64)})
    g = torch.Generator().manual_seed(0)
    for i in range(400):
        batch = random_batch(seed=i, size=128)
        side = torch.where(torch.rand(128, 1, generator=g) < 0.5, -0.5, 0.5).expand(-1, ACTIONS)
        learner.update(batch._replace(actions=side.clone(), rewards=torch.zeros(128)), global_step=i)
    obs, noise = torch.randn(500, OBS, generator=g), torch.randn(500, ACTIONS, generator=g)
    with torch.no_grad():
        for actions in (learner.model.flow_actions(obs, noise, 5), learner.model.actor.sample(obs, noise)):
            near = ((actions.abs() - 0.5).abs() < 0.25).all(1) & (actions[:, 0] * actions[:, 1] > 0)
            assert near.float().mean() > 0.7
            assert 0.3 < (actions[:, 0] > 0).float().mean() < 0.7


def test_all_networks_move_and_the_terms_are_reported() -> None:
    learner = build(FQL)
    before = snapshot(learner)
    learner.update(random_batch(), global_step=0)
    metrics = learner.update(random_batch(seed=1), global_step=1).metrics
    moved = {name.split(".")[1] for name, t in snapshot(learner).items() if not torch.equal(t, before[name])}
    assert moved == {"critics", "target_critics", "actor", "flow"}
    assert metrics.keys() == fql_loss(TERMS).keys()


def test_mistakes_are_named() -> None:
    model = MLPFQLModel(OBS, ACTIONS, (16,))
    for changes, message in (
        ({"distill_coef": -0.1}, r"^distill_coef must be >= 0.0, got -0.1$"),
        ({"flow_steps": 0}, r"^flow_steps must be >= 1, got 0$"),
        ({"q_aggregation": "max"}, r"^q_aggregation must be 'mean' or 'min', got 'max'$"),
        ({"bc_alpha": 2.5}, r"^unknown key 'bc_alpha'"),
    ):
        with pytest.raises(ValueError, match=message):
            FQL(model=model, **changes)
