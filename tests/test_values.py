"""`predict_value`: what the critics of each algorithm expect, in the environment's units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import load
from rl_training.errors import ConfigError
from rl_training.models.batch_renorm import EnsembleRenormMLP
from rl_training.models.flash import EnsembleFlash
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.models.mlp_sac import MLPTQCModel
from rl_training.runs.session import TrainResult
from rl_training.runtime.loading import load_values, open_checkpoint
from tests.exports import trained
from tests.helpers import member
from tests.runs import ALL
from tests.test_crossq_update import textbook
from tests.test_flash_sac_update import Block

CRITICAL = [algo for algo in ALL if algo != "bc"]
OBS = np.float32([[5.0, 0.0, -30.0], [5.1, 1.0, 10.0], [4.9, -1.0, -50.0]])
ACTIONS = np.float32([[-1.0, 0.4], [3.0, 0.1], [1.0, 0.25]])
UNIT = torch.tensor([[-1.0, 1.0], [1.0, -1.0], [0.0, 0.0]])


def by_hand(model: Any, obs: torch.Tensor, actions: torch.Tensor) -> np.ndarray[Any, Any]:
    """Q of every critic, `[N, B]`, its networks rewritten with `torch.nn`."""
    rows = torch.cat([model.normalizer(obs), actions], -1).double()
    net = model.critics.net
    alone = {EnsembleRenormMLP: textbook, EnsembleFlash: Block}.get(type(net), member)
    q = torch.stack([alone(net, i).double().eval()(rows) for i in range(model.num_critics)])
    if isinstance(net, EnsembleFlash):
        q = (q.softmax(-1) * torch.linspace(-5.0, 5.0, 101)).sum(-1, keepdim=True)
    return q.mean(-1).detach().double().numpy()


@pytest.mark.parametrize("algo", CRITICAL)
def test_q_and_v_of_every_algorithm(algo: str, runs: Callable[[str], TrainResult]) -> None:
    model = load(runs(algo).run_dir)
    networks: Any = load_values(open_checkpoint(runs(algo).run_dir)).model
    obs = torch.from_numpy(OBS)
    if algo == "dqn":
        assert isinstance(networks, MLPQNetwork)
        table = networks.q_values(obs).numpy()
        q, v = table[[0, 1, 2], [2, 0, 1]][None], table.max(-1)[None]
        found = model.predict_value(OBS, [7, 5, 6])
    else:
        q = by_hand(networks, obs, UNIT)
        v = by_hand(networks, obs, networks.policy.mode(obs))
        if isinstance(networks, MLPIQLModel):
            v = networks.value(networks.normalizer(obs))[None].double().numpy()
        if algo == "fql":
            noise = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
            drawn = [networks.policy.sample(obs, one.expand(3, -1)) for one in noise]
            v = np.mean([by_hand(networks, obs, actions) for actions in drawn], axis=0)
        found = model.predict_value(OBS, ACTIONS)
    np.testing.assert_allclose(found.mean, q.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.spread, q.std(0), rtol=1e-3, atol=1e-5)
    state = model.predict_value(OBS)
    np.testing.assert_allclose(state.mean, v.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.spread, v.std(0), rtol=1e-3, atol=1e-5)
    assert (len(q) == 1) == (found.spread.max() == 0.0)
    if algo not in ("iql", "dqn", "fql"):
        acted = model.predict_value(OBS, model.predict(OBS))
        np.testing.assert_allclose(acted.mean, state.mean, rtol=1e-4, atol=1e-5)


def test_one_observation_has_one_value_or_one_for_each_action(runs: Callable[[str], TrainResult]) -> None:
    model = load(runs("sac").run_dir)
    batch = model.predict_value(np.repeat(OBS[:1], 3, 0), ACTIONS)
    several = model.predict_value(OBS[0], ACTIONS)
    np.testing.assert_allclose(several.mean, batch.mean, rtol=1e-6)
    one = model.predict_value(OBS[0], ACTIONS[1])
    assert isinstance(one.mean, float)
    assert one.mean == pytest.approx(batch.mean[1])
    assert one.spread == pytest.approx(batch.spread[1])
    assert isinstance(model.predict_value(OBS[0]).mean, float)
    assert model.predict_value(OBS[:1]).mean.shape == (1,)
    choice = load(runs("dqn").run_dir).predict_value(OBS[0], [5, 6, 7])
    assert choice.mean.shape == (3,)
    assert load(runs("dqn").run_dir).predict_value(OBS[0]).mean == choice.mean.max()


def test_quantiles_are_averaged(runs: Callable[[str], TrainResult]) -> None:
    networks = load_values(open_checkpoint(runs("tqc").run_dir)).model
    assert isinstance(networks, MLPTQCModel)
    quantiles = networks.quantiles(torch.from_numpy(OBS), UNIT).detach().double().numpy()  # [B, N, M]
    found = load(runs("tqc").run_dir).predict_value(OBS, ACTIONS)
    np.testing.assert_allclose(found.mean, quantiles.mean((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(found.spread, quantiles.mean(2).std(1), rtol=1e-4)


@pytest.mark.parametrize(
    ("algo", "obs", "action", "message"),
    [
        ("bc", OBS, None, "bc learns no value function"),
        ("sac", OBS, [3.1, 0.2], r"action must lie within \[-1.0, 0.1.*\] and \[3.0, 0.4"),
        ("sac", OBS[0], [np.nan, 0.2], "action must lie within"),
        ("sac", OBS[0], [1.0], r"action must have shape \[2\] or \[B, 2\], got \[1\]"),
        ("sac", OBS, ACTIONS[:2], "action: 2 for 3 observations; give one for each"),
        ("sac", OBS[0], "left", "action must be numbers"),
        ("sac", OBS[0], np.array([1j]), r"action must be numbers .*: they are complex; pass real numbers"),
        ("sac", OBS[0, :2], None, r"obs must have shape \[3\]"),
        ("dqn", OBS[0], 8, "action must be a whole number from 5 to 7, got 8"),
        ("dqn", OBS[0], 5.5, "action must be a whole number from 5 to 7, got 5.5"),
        ("dqn", OBS[0], [[5]], r"action must have shape \[\] or \[B\], got \[1, 1\]"),
    ],
)
def test_what_has_no_value_is_refused(
    algo: str, obs: Any, action: Any, message: str, runs: Callable[[str], TrainResult]
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(runs(algo).run_dir).predict_value(obs, action)


def test_a_model_that_learned_more_is_asked_again(tmp_path: Path) -> None:
    model = load(trained("td3", tmp_path).run_dir)
    before = model.predict_value(OBS).mean
    model.resume(35, progress_bar=False)
    assert not np.allclose(before, model.predict_value(OBS).mean)


@pytest.mark.parametrize("algo", ["cql", "iql"])
def test_values_of_choices_learned_from_data(algo: str, tmp_path: Path) -> None:
    run = trained(algo, tmp_path, discrete=True).run_dir
    model, networks = load(run), load_values(open_checkpoint(run)).model
    obs = torch.from_numpy(OBS)
    seen = networks.normalizer(obs)
    if isinstance(networks, MLPQNetwork):
        table = networks.q_values(obs).numpy()[None]  # [1, B, K]
        state = table.max(-1)
    else:
        table = torch.stack([member(networks.critics.net, i)(seen) for i in range(2)]).detach().numpy()
        state = networks.value(seen)[None].detach().numpy()
    q = table[:, [0, 1, 2], [2, 0, 1]]
    found, value = model.predict_value(OBS, [7, 5, 6]), model.predict_value(OBS)
    np.testing.assert_allclose(found.mean, q.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.spread, q.std(0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(value.mean, state.mean(0), rtol=1e-4, atol=1e-5)
