"""A study whose workers are tasks of a Ray cluster: nodes lost, drivers stopped or killed, unfit nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study import Study
from rl_training.study.claims import read_claim
from rl_training.study.plan import read_plan
from rl_training.study.ray_pool import Cluster
from tests.ray_clusters import SOURCE, Nodes, nodes
from tests.reliability.processes import is_there, usual_signals, wait_for
from tests.studies import differing, study_in, tiny_study
from tests.test_study_worker_pool import LONGER, owners

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch, nodes(patch) as found:
        yield found


def strange(folder: Path, program: str) -> dict[str, str]:
    """Variables of a node on which every Python starts with this program."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(SOURCE / "src"), str(SOURCE)])}


def sweeping(tmp_path: Path, address: str, **fields: object) -> tuple[subprocess.Popen[str], Path]:
    """A sweep on Ray, under way, from the folder of its file."""
    (tmp_path / "tiny.yaml").write_text(dump_yaml(tiny_study(**{"set": LONGER, **fields})))
    command = [sys.executable, "-m", "rl_training", "sweep", "tiny.yaml", "--ray", address]
    with (tmp_path / "output").open("w") as output:
        sweep = subprocess.Popen(
            command, cwd=tmp_path, stdout=output, stderr=output, text=True, preexec_fn=usual_signals
        )
    return sweep, tmp_path / "studies" / "tiny"


def first_owners(folder: Path) -> dict[str, str]:
    """The machine on which each group was claimed first."""
    return {
        group.name: claim.read_text()
        for group in read_plan(folder).groups
        if (claim := folder / "claims" / group.name / "1.json").exists()
    }


def test_a_node_lost_half_way(cluster: Nodes, tmp_path: Path) -> None:
    """To claims the node is another machine: what it held is free when its claims have expired."""
    there = strange(tmp_path / "node", "import platform\nplatform.node = lambda: 'elsewhere'\n")
    node = cluster.add(there)
    seeds = [0, 1, 2, 3, 4, 5]
    sweep, folder = sweeping(tmp_path, cluster.address, seeds=seeds, claim_timeout=5)

    def half_way() -> list[Path]:
        return [
            path
            for group in (read_plan(folder).groups if (folder / "plan.json").exists() else ())
            if '"elsewhere"' in first_owners(folder).get(group.name, "")
            for path in (folder / "runs" / group.trials[0].name).glob("checkpoints/step_*")
        ]

    wait_for(half_way, 120)
    cluster.lose(node)
    text = tmp_path / "output"
    assert sweep.wait(180) == 0, text.read_text()
    assert "a worker was lost" in text.read_text()
    assert "tiny: 6 done" in text.read_text()
    claims = [read_claim(folder, group.name) for group in read_plan(folder).groups]
    assert any(claim is not None and claim.generation > 1 for claim in claims)
    assert not list(folder.glob(".ray-*"))
    study_in(tmp_path / "alone", set=LONGER, seeds=seeds).run()
    assert differing(folder, tmp_path / "alone" / "tiny") == []


def test_a_signal_to_the_sweep_stops_its_workers_who_save(cluster: Nodes, tmp_path: Path) -> None:
    together = {**LONGER, "total_timesteps": 10_000}  # no worker ends before the other one has begun
    sweep, folder = sweeping(tmp_path, cluster.address, set=together)
    wait_for(lambda: len(owners(folder)) == 2 and len(list(folder.glob("runs/*/checkpoints/step_*"))) > 1, 120)
    workers = owners(folder)
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(120) == 130, (tmp_path / "output").read_text()
    assert "the same command continues" in (tmp_path / "output").read_text()
    assert not any(is_there(pid) for pid in workers)
    assert owners(folder) == set()
    assert Study(folder).run(ray=cluster.address).counts["done"] == 2
    study_in(tmp_path / "alone", set=together).run()
    assert differing(folder, tmp_path / "alone" / "tiny") == []


def test_workers_do_not_outlive_a_sweep_that_is_killed(cluster: Nodes, tmp_path: Path) -> None:
    sweep, folder = sweeping(tmp_path, cluster.address, set={**LONGER, "total_timesteps": 10_000})
    wait_for(lambda: len(owners(folder)) == 2, 120)
    workers = owners(folder)
    sweep.kill()
    sweep.wait()
    wait_for(lambda: not any(is_there(pid) for pid in workers))
    assert Study(folder).run().counts["done"] == 2


WITHOUT_FOLDER = """
import sys
def hide(event, arguments):
    if event == {event!r} and "/.ray-" in str(arguments[0]):
        raise {error}
sys.addaudithook(hide)
"""
STRANGE = {
    "unseen": (WITHOUT_FOLDER.format(event="open", error="FileNotFoundError"), "does not see this folder; a study"),
    "read-only": (
        WITHOUT_FOLDER.format(event="os.remove", error="OSError(30, 'Read-only file system')"),
        "cannot use this folder (Read-only file system); a study on Ray needs a disk that all nodes share",
    ),
    "older": (
        "import rl_training\nrl_training.__version__ = '0.0.1'\n",
        "has version 0.0.1 of this package, and this is",
    ),
    "empty": ("import sys\nsys.modules['rl_training'] = None\n", "cannot run this package ("),
}


def test_nodes_that_cannot_take_part_are_named(
    cluster: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_in(tmp_path / "studies")
    for kind, (program, message) in STRANGE.items():
        node = cluster.add(strange(tmp_path / kind, program))
        with pytest.raises(ConfigError) as caught:
            study.run(ray=cluster.address)
        assert f"{study.folder}: node " in str(caught.value)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        if kind == "unseen":  # as one that joins later: its worker finds out itself
            with monkeypatch.context() as patch:
                patch.setattr(Cluster, "check", lambda self, folder: None)
                with pytest.raises(ConfigError, match=r"node \S+ does not see this folder; a study on Ray needs"):
                    study_in(tmp_path / "late", seeds=[0, 1, 2, 3], set=LONGER).run(4, ray=cluster.address)
        assert not list(study.folder.glob(".ray-*"))
        cluster.lose(node)
    assert study.run(ray=cluster.address).counts["done"] == 2


def test_more_threads_than_any_node_has(cluster: Nodes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--ray: a worker needs 3 CPUs and 0 GPUs, and no node of the cluster"):
        study_in(tmp_path, threads=3).run(ray="auto")
    with pytest.raises(ConfigError, match="--ray: a worker needs 1 CPUs and 1 GPUs, and no node of the cluster"):
        study_in(tmp_path / "gpu").run(ray="auto", gpus=["0"])


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1"])
def test_no_cluster(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    expected = r"^--ray [0-9.]+:1: no Ray cluster can be reached there \(Connection refused\); start one with"
    with pytest.raises(ConfigError, match=expected):
        study_in(tmp_path).run(ray=address)
    assert list(tmp_path.iterdir()) == []
