"""`actor_starts`: the critics learn first, and a policy that a run starts from does not change until then."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.algorithms import CQL, DDPG, REDQ, RLPD, SAC, TD3, TQC, CrossQ, FlashSAC, Learner
from rl_training.environments.torch_envs import TorchPendulum
from rl_training.errors import ConfigError
from rl_training.experience.base import in_random_block
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import SCHEMA
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runs import init_from
from rl_training.runs.regime import Regime
from rl_training.updates.stack import Stack
from tests.helpers import build, label, random_batch, snapshot
from tests.runs import EVERY_STEP, replay_rows, tiny, train, trainer_state
from tests.test_exact_resume import assert_exact, eventful
from tests.test_population_updates import SIZE, assert_members_equal
from tests.test_tensor_env import collector_of

HOLDING: list[type[Learner]] = [DDPG, TD3, SAC, TQC, REDQ, RLPD, CrossQ, FlashSAC]
HELD = ("model.actor.", "temperature.")
every_holding = pytest.mark.parametrize("kind", HOLDING, ids=label)


def holding(kind: type[Learner], actor_starts: int | None) -> Any:
    """A small learner with a learned temperature, if it has one."""
    learned = {"alpha": "auto"} if "alpha" in kind.Config.model_fields else {}
    return build(kind, actor_starts=actor_starts, **learned)


def update(learner: Any, count: int) -> dict[str, Tensor]:
    """The networks after `count` updates on batches that depend on the number of the update alone."""
    for i in range(learner.updates, learner.updates + count):
        learner.update(random_batch(seed=i), global_step=i)
    return snapshot(learner)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@every_holding
def test_the_actor_and_the_temperature_wait_and_all_else_learns(kind: type[Learner]) -> None:
    learner = holding(kind, 4)
    start = snapshot(learner)
    held = {name for name in start if name.startswith(HELD)}
    assert any(name.startswith("temperature.") for name in held) or kind in (DDPG, TD3)
    # The actor's target is updated, to the actor that it equals.
    learned = {name for name in start if name.startswith(("model.critics.", "model.target_critics."))}
    during = update(learner, 4)
    assert changed(start, during) == learned
    assert float(learner.optimizers["actor"].step) == 0
    assert changed(during, update(learner, 2)) >= held | learned


@every_holding
def test_the_targets_are_updated_as_often_as_without(kind: type[Learner]) -> None:
    held, free = holding(kind, 100), holding(kind, 0)
    for _ in range(4):
        pairs = [(snapshot(one), update(one, 1)) for one in (held, free)]
        moved, expected = ({n for n in changed(*pair) if "target_critics" in n} for pair in pairs)
        assert moved == expected


@every_holding
def test_an_update_draws_the_same_numbers_while_the_actor_waits(kind: type[Learner]) -> None:
    held, free = holding(kind, 3), holding(kind, None)
    first = [update(learner, 1) for learner in (held, free)]
    # The critics of FlashSAC are updated after the actor, and by it.
    assert any(name.startswith("model.critics.") for name in changed(*first)) == (kind is FlashSAC)
    for learner in (held, free):
        update(learner, 4)
    assert torch.equal(held.generator.get_state(), free.generator.get_state())


@every_holding
def test_zero_is_the_update_without_the_setting(kind: type[Learner]) -> None:
    assert changed(update(holding(kind, 0), 4), update(holding(kind, None), 4)) == set()


@every_holding
def test_a_member_of_a_population_waits_as_long(kind: type[Learner]) -> None:
    assert_members_equal(kind, ({"alpha": "auto", "actor_starts": 3},) * SIZE, updates=6)


def test_members_that_wait_for_different_times_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^actor_starts: the members' actors start at different updates \(\[4, 0"
    ):
        Stack([holding(SAC, 4), holding(SAC, None)])
    with pytest.raises(ConfigError, match=r"^bc_steps: \[5, 0\] updates of cloning are left to the members"):
        Stack([build(CQL, bc_steps=steps) for steps in (5, 0)])


@pytest.mark.parametrize("value", [-1, 0.5, "auto"])
def test_what_is_not_a_number_of_updates_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.actor_starts must be "):
        train(tiny("sac", tmp_path, kwargs={"actor_starts": value}))
    assert not any(tmp_path.iterdir())


def test_only_online_learners_with_an_actor_have_it() -> None:
    found = {one.name for one in list_algorithm_specs() if "actor_starts" in one.sections.owners()}
    assert found == {kind.name for kind in HOLDING}


# Runs that start from a policy.


def built(config: TrainConfig) -> Regime:
    """A run that is built but not trained."""
    spec = get_algorithm_spec(config.algo).run_spec(config)
    regime = spec.regime(spec)
    regime.close()
    return regime


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Runs without critics: of a stochastic policy, and of a deterministic one."""
    found = {}
    for stochastic in (True, False):
        kwargs = {"stochastic": stochastic, "policy_distribution": "tanh"}
        config = tiny("bc", tmp_path_factory.mktemp("bc"), kwargs=kwargs, total_timesteps=5, eval_episodes=0)
        found[stochastic] = train(config).run_dir
    return found


# No other algorithm has policies that fit the networks of CrossQ and FlashSAC.
@pytest.mark.parametrize("kind", [kind for kind in HOLDING if kind not in (CrossQ, FlashSAC)], ids=label)
def test_a_policy_without_critics_is_kept_at_first(
    kind: type[Learner], cloned: dict[bool, Path], tmp_path: Path
) -> None:
    regime = built(tiny(kind.name, tmp_path, init_from=cloned[kind not in (DDPG, TD3)]))
    assert regime.learner.actor_starts == init_from.ACTOR_STARTS
    assert regime.spec.settings["algo_kwargs"]["actor_starts"] == init_from.ACTOR_STARTS
    assert "the policy does not change in the first 5,000 updates (actor_starts)" in regime.remarks
    described = regime.learner.Config.model_fields["actor_starts"].description
    assert f"{init_from.ACTOR_STARTS:,}" in str(described)


@pytest.mark.parametrize(("algo", "updates"), [("sac", 41), ("rlpd", 71)])
def test_a_run_that_ends_before_the_actor_starts_warns(
    algo: str, updates: int, cloned: dict[bool, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (updates - 1, updates):
        assert not caplog.messages
        built(tiny(algo, tmp_path, kwargs={"actor_starts": value} | EVERY_STEP, init_from=cloned[True]))
    assert caplog.messages == [
        f"this run ends before the policy changes: {updates} updates, actor_starts {updates}"
    ]


def test_the_setting_decides_if_it_is_given(cloned: dict[bool, Path], tmp_path: Path) -> None:
    for value in (0, 7):
        regime = built(tiny("sac", tmp_path, kwargs={"actor_starts": value}, init_from=cloned[True]))
        assert regime.learner.actor_starts == regime.spec.settings["algo_kwargs"]["actor_starts"] == value


def test_a_policy_with_critics_that_fit_learns_at_once(tmp_path: Path) -> None:
    before = train(tiny("awac", tmp_path, total_timesteps=5, eval_episodes=0))
    regime = built(tiny("sac", tmp_path, init_from=before.run_dir))
    assert regime.learner.actor_starts == 0
    assert regime.spec.settings["algo_kwargs"]["actor_starts"] is None
    # REDQ has another number of critics.
    assert built(tiny("redq", tmp_path, init_from=before.run_dir)).learner.actor_starts == init_from.ACTOR_STARTS


@pytest.mark.parametrize(
    ("algo", "before", "into", "now", "said"),
    [
        ("awac", {"reward_scale": 0.1}, "sac", {}, "reward_scale 0.1 -> 1.0"),
        ("awac", {}, "awac", {"reward_shift": -1.0}, "reward_shift 0.0 -> -1.0"),
        ("awac", {}, "sac", {"gamma": 0.9}, "gamma 0.99 -> 0.9"),
        ("flash_sac", {}, "flash_sac", {"value_limit": 9.0}, "value_limit 5.0 -> 9.0"),
        ("awac", {"reward_scale": 0.1}, "awac", {"reward_scale": 0.1}, ""),
        ("awac", {"reward_scale": 0.1}, "redq", {}, ""),  # does not copy the critics
    ],
)
def test_critics_in_other_units_are_copied_with_a_warning(
    algo: str, before: Any, into: str, now: Any, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    origin = train(tiny(algo, tmp_path, kwargs=before, total_timesteps=25, eval_episodes=0)).run_dir
    built(tiny(into, tmp_path, kwargs=now, init_from=origin))
    found = [text for text in caplog.messages if "in other units" in text]
    assert len(found) == bool(said)
    assert all(text.endswith(f"have values in other units: {said}") for text in found)


@pytest.mark.parametrize(("kwargs", "expected"), [({}, 0), ({"actor_starts": None}, None)])
def test_a_record_from_before_the_setting_means_zero(kwargs: dict[str, Any], expected: int | None) -> None:
    """Such a run may start again, if it was killed before its first checkpoint."""
    record = TrainConfig(algo="td3", env_id="Pendulum-v1", init_from="other", total_timesteps=9, algo_kwargs=kwargs)
    assert with_defaults_of(SCHEMA, record).algo_kwargs["actor_starts"] is expected


def test_a_run_resumes_exactly_while_its_actor_waits(
    cloned: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is in the checkpoint: neither the other run nor the default of today decides."""
    monkeypatch.setattr(init_from, "ACTOR_STARTS", 30)
    origin = Path(shutil.copytree(cloned[True], tmp_path / "origin"))
    given = read_checkpoint(find_checkpoint(origin)).tensors["networks"]

    def policy_kept(path: Path) -> bool:
        networks = read_checkpoint(path).tensors["networks"]
        return all(torch.equal(networks[name], given[name]) for name in given if name.startswith("model.actor."))

    def look(checkpoint: Path) -> None:
        assert 0 < trainer_state(checkpoint)["counters"]["updates"] < 30
        assert policy_kept(checkpoint)
        shutil.rmtree(origin)
        monkeypatch.setattr(init_from, "ACTOR_STARTS", 0)

    kwargs = {"normalize_observations": False, "random_block_steps": 3}
    resumed = assert_exact(eventful("sac", tmp_path / "runs", kwargs=kwargs, init_from=origin), 40, look)
    assert not policy_kept(resumed.checkpoint_path)


def test_random_blocks_alternate_with_the_policy_until_the_actor_starts() -> None:
    """Per environment: two random steps, two of the policy, until five updates are made."""
    learner, found = holding(SAC, 5), []
    collector = collector_of(TorchPendulum(3), random_steps=0, random_block_steps=2)
    collector.learner = learner
    collector._run = lambda name, step: found.append(name)  # type: ignore[method-assign]
    for learner.updates in (0, 0, 0, 1, 2, 3, 4, 5, 5, 5):
        collector.act()
        collector.steps += collector.width
    assert found == [
        "random",
        "random",
        "policy",
        "policy",
        "random",
        "random",
        "policy",
        "policy",
        "policy",
        "policy",
    ]
    assert [in_random_block(learner, step, 2) for step in range(4)] == [False] * 4
    learner.updates = 0
    assert [in_random_block(learner, step, 2) for step in range(4)] == [True, True, False, False]
    assert not in_random_block(learner, 0, 0)


def test_a_run_shows_its_critics_random_actions(cloned: dict[bool, Path], tmp_path: Path) -> None:
    """Four of every eight steps, chosen by the seed of exploration and not by the policy."""
    kwargs = {"normalize_observations": False, "random_block_steps": 4, "learning_starts": 5}
    runs = []
    for origin in cloned[True], Path("gallery/sac"):
        sizes = {} if origin is cloned[True] else {"hidden_sizes": [64, 64]}
        config = tiny("sac", tmp_path, kwargs=kwargs | sizes, init_from=origin, total_timesteps=16, eval_episodes=0)
        runs.append(replay_rows(read_checkpoint(train(config).checkpoint_path))[:, 3])
    same = (runs[0] == runs[1]).tolist()
    assert same[:4] == [True] * 4
    assert not any(same[4:8])


def test_a_published_policy_survives_the_first_updates(tmp_path: Path) -> None:
    """With a learning rate that destroys the policy as soon as it is updated."""
    given = read_checkpoint(find_checkpoint(Path("gallery/sac"))).tensors["networks"]
    furthest = {}
    for value in (None, 0):
        kwargs = {"hidden_sizes": [64, 64], "learning_rate": 0.1, "actor_starts": value} | EVERY_STEP
        config = tiny("sac", tmp_path, kwargs=kwargs, init_from="gallery/sac", total_timesteps=25, eval_episodes=0)
        run = train(config)
        networks = read_checkpoint(run.checkpoint_path).tensors["networks"]
        furthest[value] = max(float((networks[name] - tensor).abs().max()) for name, tensor in given.items())
    assert furthest[None] == 0.0
    assert furthest[0] > 0.3
