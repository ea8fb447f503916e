"""`{seed}` in `init_from`: every trial of a study, and every member of a population, starts from its own run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.experiment.runs import amend_record
from rl_training.study import Study
from rl_training.study.description import read_description
from rl_training.study.plan import read_plan
from rl_training.study.tuning_file import read_tuning
from tests.runs import TINY, owned, run_record, tiny, train
from tests.studies import homes, unlike
from tests.test_population_runs import all_unlike, apart, together

SEEDS = (0, 1)
COMMON: dict[str, Any] = {
    "device": "cpu",
    "env_id": "Pendulum-v1",
    "eval_episodes": 0,
    "log_interval": 20,
    "checkpoint_interval": 20,
}


def study_of(algo: str, folder: Path, name: str, settings: dict[str, Any], **fields: Any) -> Study:
    common = COMMON | {"total_timesteps": 30, **owned(algo, TINY), **settings}
    described = {"name": name, "base": f"{algo}/pendulum", "set": common, "seeds": list(SEEDS), "threads": 1}
    return Study(described | fields, output_dir=folder)


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of AWAC on two seeds."""
    study = study_of("awac", tmp_path_factory.mktemp("offline"), "offline", {})
    assert study.run().counts["done"] == 2
    return study.folder


def template(study: Path) -> str:
    """The run folder of every seed."""
    home = homes(study)[0]
    return str(home.with_name(home.name.removesuffix("__s0") + "__s{seed}"))


def networks(home: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(find_checkpoint(home)).tensors["networks"]


def actor(home: Path) -> list[torch.Tensor]:
    return [tensor for name, tensor in sorted(networks(home).items()) if name.startswith("model.actor.")]


# Too small a rate to move anything: what a run ends with is what it began with.
STILL = {"learning_rate": 1e-30}


@pytest.mark.parametrize("population", ["off", 2])
def test_each_seed_of_a_study_starts_from_its_own_run(population: Any, offline: Path, tmp_path: Path) -> None:
    study = study_of("sac", tmp_path, "online", STILL | {"init_from": template(offline)}, population=population)
    assert study.run().counts["done"] == 2
    assert len(read_plan(study.folder).configurations) == 1, "one configuration, whatever the seed"
    ours, theirs = ([actor(home) for home in homes(folder)] for folder in (study.folder, offline))
    for one, other in zip(ours, theirs):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(*ours)), "the two seeds began with one policy"


def test_trained_as_one_or_alone_they_are_the_same_runs(offline: Path, tmp_path: Path) -> None:
    for folder, population in (("a", "off"), ("b", 2)):
        study_of("sac", tmp_path / folder, "online", {"init_from": template(offline)}, population=population).run()
    assert unlike(tmp_path / "a" / "online", tmp_path / "b" / "online") == []


def test_more_seeds_are_added_when_their_runs_are_there(offline: Path, tmp_path: Path) -> None:
    study = study_of("sac", tmp_path, "online", {"init_from": template(offline)}, seeds=[1])
    assert study.run().counts["done"] == 1
    assert (
        study_of("sac", tmp_path, "online", {"init_from": template(offline)}, seeds=[1, 0]).run().counts["done"]
        == 2
    )


def test_a_seed_without_a_run_is_refused_before_the_first_trial(offline: Path, tmp_path: Path) -> None:
    settings = {"init_from": template(offline)}
    with pytest.raises(CheckpointError, match=r"__s2: no such checkpoint$"):
        study_of("sac", tmp_path, "online", settings, seeds=[0, 1, 2]).run()
    assert not list(tmp_path.rglob("run.json"))


def test_a_study_that_continues_elsewhere_starts_no_trial_without_its_run(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that has a checkpoint does not need the run from which it started."""
    monkeypatch.chdir(offline.parent)
    relative = str(Path(template(offline)).relative_to(offline.parent))
    study = study_of("sac", tmp_path, "online", {"init_from": relative}, seeds=[0])
    assert study.run().counts["done"] == 1
    study_of("sac", tmp_path, "online", {"init_from": relative}, seeds=[0, 1]).plan()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"__s1: no such checkpoint; .* in the folder where the study began$"):
        Study(study.folder).run()
    assert Study(study.folder).status().counts["waiting"] == 1
    amend_record(homes(study.folder)[0], status="interrupted")
    with pytest.raises(CheckpointError, match=r"__s1: no such checkpoint"):
        Study(study.folder).run()


def test_only_the_seeds_of_the_study_count(offline: Path, tmp_path: Path) -> None:
    """Not the seed of the configuration, for which there may be no run."""
    (tmp_path / "own.yaml").write_text("algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 6000\nseed: 77\n")
    described: dict[str, Any] = {
        "name": "online",
        "base": str(tmp_path / "own.yaml"),
        "set": {"init_from": template(offline), "hidden_sizes": [16, 16]},
        "seeds": [1],
    }
    [wanted] = read_description(described).wanted
    assert wanted.config.init_from == template(offline)
    del described["seeds"]
    with pytest.raises(CheckpointError, match=r"__s77: no such checkpoint$"):
        read_description(described)


def test_fresh_seeds_of_a_tuning_need_their_runs_too(offline: Path) -> None:
    described: dict[str, Any] = {
        "base": "sac/pendulum",
        "set": {"init_from": template(offline), "hidden_sizes": [16, 16]},
        "seeds": [0],
        "space": {"gamma": [0.9, 0.99]},
    }
    assert read_tuning(described | {"confirm": {"best": 1, "seeds": [1]}}).base.init_from == template(offline)
    with pytest.raises(CheckpointError, match=r"__s5: no such checkpoint$"):
        read_tuning(described | {"confirm": {"best": 1, "seeds": [5]}})


def test_seeds_without_a_study(offline: Path, tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, init_from=template(offline), seeds=list(SEEDS), eval_episodes=0)
    ours, alone = together(config), apart(config)
    assert all_unlike(ours, alone) == [[], []]
    still = tiny("sac", tmp_path, kwargs=STILL, init_from=template(offline), seed=1, seeds=None, eval_episodes=0)
    home = train(still).run_dir
    assert all(torch.equal(a, b) for a, b in zip(actor(home), actor(homes(offline)[1]), strict=True))
    assert run_record(home)["seed"] == 1


def test_runs_of_different_shape_are_not_trained_as_one(tmp_path: Path) -> None:
    """One looks at normalised observations and the other not: that is in their checkpoints, not in the settings."""
    for seed in SEEDS:
        kwargs = {"normalize_observations": bool(seed)}
        made = train(tiny("awac", tmp_path / "made", kwargs=kwargs, seed=seed, total_timesteps=20, eval_episodes=0))
        made.run_dir.rename(tmp_path / f"s{seed}")
    config = tiny("sac", tmp_path, init_from=str(tmp_path / "s{seed}"), seeds=list(SEEDS), eval_episodes=0)
    message = (
        r"^init_from: the members' networks differ \(first in model\.normalizer\.\w+\) and cannot be trained as one"
    )
    with pytest.raises(ConfigError, match=message):
        together(config)
    assert len(apart(config)) == 2
