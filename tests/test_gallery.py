"""The published policies: each plays well, has a correct card, is small, and contains only numbers and text."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors import safe_open

import rl_training
from benchmarks.evidence import gallery
from rl_training import SAC, TD3
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.config import load_config
from rl_training.experiment.gallery import GALLERY, published_policies
from rl_training.experiment.registry import algorithm_names, resolve, setting_names, spec_of
from rl_training.runs.state import config_of, policy_alone
from rl_training.runtime.loading import open_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.seeding import EVALUATION_SEED
from tests import test_docs_pages

pytestmark = pytest.mark.pages

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gallery.md"
FILES = sorted(path for path in GALLERY.rglob("*") if not path.is_dir())
# Three episodes: far above what random actions get, with room for the hardest starts.
AT_LEAST = {"Pendulum-v1": -400.0, "CartPole-v1": 400.0}


def test_every_algorithm_has_one() -> None:
    assert published_policies() == sorted(f"gallery/{name}" for name in algorithm_names())
    assert list(gallery.RECIPES) == algorithm_names()


@pytest.mark.parametrize("name", algorithm_names())
def test_a_published_policy_plays_well(name: str) -> None:
    model = rl_training.load(f"gallery/{name}")
    assert model.algo == name
    assert repr(model).endswith(f"assets/gallery/{name}")
    metrics = model.evaluate(num_episodes=3)
    assert metrics["eval_return_mean"] > AT_LEAST[str(model.config.env_id)]


@pytest.mark.parametrize("env_id", AT_LEAST)
def test_random_actions_do_not_play_as_well(env_id: str) -> None:
    env, returns = gym.make(env_id), []
    env.action_space.seed(0)
    for episode in range(10):
        env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert np.mean(returns) < AT_LEAST[env_id] - 100


def test_all_of_them_are_small_and_none_of_their_files_can_run() -> None:
    assert sum(path.stat().st_size for path in FILES) < 1_000_000
    for path in FILES:
        assert path.suffix in (".json", ".safetensors"), path
        assert not path.is_symlink()
        assert not path.stat().st_mode & 0o111
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        else:
            with safe_open(path, framework="np") as file:
                assert all(file.get_tensor(key).dtype == np.float32 for key in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("name", algorithm_names())
def test_a_checkpoint_has_only_a_policy_of_two_small_layers(name: str) -> None:
    [folder] = (GALLERY / name).iterdir()
    checkpoint = read_checkpoint(folder)  # which compares every hash
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *checkpoint.manifest.files}
    assert checkpoint.rows is None
    assert set(checkpoint.tensors) == {"networks"}
    networks = checkpoint.tensors["networks"]
    assert {tensor.split(".")[1] for tensor in networks} <= {"actor", "normalizer"}
    inner = [32, 128] if name == "flash_sac" else [64, 64]
    assert [shape for key, tensor in networks.items() if list(shape := tensor.shape)[-2:] == inner] != []
    assert max(tensor.numel() for tensor in networks.values()) == 64 * 64


@pytest.mark.parametrize("name", algorithm_names())
def test_the_card_of_a_policy_is_correct(name: str) -> None:
    checkpoint = open_checkpoint(f"gallery/{name}")
    card, config = checkpoint.records["card"], checkpoint.records["config"]
    assert card["commands"] == [shlex.join(words) for words in gallery.commands(name)]
    words = shlex.split(card["commands"][-1])
    given = dict(zip(words[2::2], words[3::2]))
    overrides = [value for word, value in pairwise(words) if word == "--set"]
    options = {"seed": int(given["--seed"]), "device": given["--device"]}
    if "--algo" in given:
        options |= {"algo": given["--algo"], "env_id": given["--env"], "total_timesteps": int(given["--steps"])}
    meant = load_config(given.get("--config"), overrides, options=options, owners=setting_names).config
    # Settings that came later mean what was done before there were any.
    meant, read = (
        one.to_dict() | {"algo_kwargs": resolve(one).to_dict()} for one in (meant, config_of(checkpoint))
    )
    if meant["algo_kwargs"].get("learning_starts") == "auto":
        first_steps = min(meant["total_timesteps"] // 10, spec_of(config_of(checkpoint)).learner.most_first_steps)
        meant["algo_kwargs"]["learning_starts"] = first_steps
    # All but the newest were trained before `environments: auto` was the default, with the same results.
    before = "auto" if name in ("crossq", "flash_sac", "fql", "cal_ql") else "local"
    assert (meant.pop("environments"), read.pop("environments")) == ("auto", before)
    assert meant == read
    assert config["algo_kwargs"].items() <= read["algo_kwargs"].items()
    assert card["score"]["mean"] >= gallery.line_of(name)
    assert card["score"]["episodes"] == gallery.EPISODES
    assert card["score"]["seed"] != EVALUATION_SEED
    assert card["steps"] == checkpoint.step == config["total_timesteps"]
    assert card["updates"] > 0
    assert {"date", "machine", "versions", "threads"} < set(card)
    assert card["commit"] != "unknown"
    assert not card["commit"].endswith("-dirty")


def test_the_score_is_that_of_the_policy() -> None:
    """A card that belongs to another policy would have another score."""
    told = read_checkpoint(find_checkpoint(GALLERY / "td3")).records["card"]["score"]
    played = gallery.judge(GALLERY / "td3", 20)
    low, high = told["min"], told["max"]
    assert all(low - 1 <= value <= high + 1 for value in played["returns"])
    assert played["seed"] == told["seed"]


def test_the_page_matches_the_cards() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for (_, name), section in gallery.sections(gallery.cards()).items():
        found = f"<!-- begin {name} -->\n{section}\n<!-- end {name} -->"
        assert found in text, "run: python -m benchmarks.evidence.gallery --render"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert PAGE.name == "gallery.md"
    test_docs_pages.walk("gallery", PAGE.read_text(encoding="utf-8"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"td3.npz", "cartpole.gif"}


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("gallery/SAC").path.parent == GALLERY / "sac"
    Path("gallery/sac").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="gallery/sac: neither a checkpoint nor a run folder"):
        open_checkpoint("gallery/sac")


def test_a_name_that_is_not_published_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = "; those are awac, bc, cal_ql, cql, "
    with pytest.raises(
        CheckpointError, match=rf"gallery/sacc: .* no published policy; did you mean 'sac'\?{known}"
    ):
        open_checkpoint("gallery/sacc")
    with pytest.raises(CheckpointError, match=rf"gallery/humanoid: .* no published policy{known}"):
        open_checkpoint("gallery/humanoid")
    with pytest.raises(CheckpointError, match="gallery: no such checkpoint"):
        open_checkpoint("gallery")


def test_what_needs_more_than_a_policy_is_refused_in_one_line() -> None:
    model = rl_training.load("gallery/sac")
    with pytest.raises(ConfigError, match="holds a policy without its critics; predict_value needs those of a run"):
        model.predict_value([1.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match="bc learns no value function"):
        rl_training.load("gallery/bc").predict_value([1.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match=r"holds a policy only; resume the run folder, or use init_from$"):
        resume_training("gallery/sac")
    with pytest.raises(ConfigError, match=r"holds a policy only; resume the run folder, or use init_from$"):
        model.resume(100)


def test_a_run_starts_from_one(tmp_path: Path) -> None:
    """Its policy is taken over, its critics and their targets are new; nothing is learned yet."""
    settings = {"hidden_sizes": [64, 64], "init_from": "gallery/sac", "learning_starts": 10, "device": "cpu"}
    model = SAC("Pendulum-v1", output_dir=str(tmp_path), eval_episodes=0, gradient_updates_per_step=1, **settings)
    result = model.learn(total_timesteps=11, progress_bar=False)
    before = open_checkpoint("gallery/sac").tensors["networks"]
    after = read_checkpoint(result.checkpoint_path).tensors["networks"]
    assert any(name.startswith("model.critics.") for name in after)
    for name, tensor in before.items():
        assert torch.allclose(after[name], tensor, atol=0.01), name


def test_a_policy_alone_acts_as_its_run_does(tmp_path: Path) -> None:
    settings = {"hidden_sizes": [8], "learning_starts": 20, "normalize_observations": True, "batch_size": 8}
    model = TD3("Pendulum-v1", seed=0, output_dir=str(tmp_path / "runs"), device="cpu", eval_episodes=1, **settings)
    result = model.learn(total_timesteps=60, progress_bar=False)
    saved = policy_alone(read_checkpoint(result.checkpoint_path))
    alone = write_checkpoint(tmp_path / "alone", 60, tensors=saved.tensors, records=saved.records)
    assert sum(file.stat().st_size for file in alone.iterdir()) < 20_000
    obs = np.random.default_rng(0).normal(size=(50, 3))
    assert np.array_equal(rl_training.load(alone).predict(obs), model.predict(obs))
    assert evaluate_checkpoint(alone, 1) == evaluate_checkpoint(result.checkpoint_path, 1)


def test_a_policy_alone_must_be_whole(tmp_path: Path) -> None:
    checkpoint = open_checkpoint("gallery/td3")
    networks = dict(checkpoint.tensors["networks"])
    del networks[next(iter(networks))]
    broken = write_checkpoint(tmp_path, 1, tensors={"networks": networks}, records=dict(checkpoint.records))
    with pytest.raises(CheckpointError, match="its networks do not fit this configuration"):
        rl_training.load(broken)
