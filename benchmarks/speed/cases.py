"""The cases of `benchmarks.speed.updates`: learners with their published settings, on random rows with
HalfCheetah's shapes.

Learners with a temperature learn it, as the peers do; a fixed temperature would be faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.data.sources import TensorSource
from rl_training.data.transitions import RowLayout
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.spaces import SpaceSpec
from rl_training.updates import updater as running
from rl_training.updates.updater import Acceleration, Updater

OBS_DIM, ACTION_DIM, ROWS = 17, 6, 50_000
CONTINUOUS = SpaceSpec(obs_dim=OBS_DIM, low=(-1.0,) * ACTION_DIM, high=(1.0,) * ACTION_DIM)
DISCRETE = SpaceSpec(obs_dim=OBS_DIM, num_actions=ACTION_DIM)

TWO, THREE = (256, 256), (256, 256, 256)


@dataclass(frozen=True)
class Case:
    """One row of the table.

    `network` contains further settings of the networks; `peer` is `library:Algorithm` with the same networks;
    `goal` is the target of updates per second on an H200 in float32, `goal_ratio` the target ratio to the peer on a
    CPU.
    """

    name: str
    algo: str
    hidden: tuple[int, ...] = TWO
    settings: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    peer: str | None = None
    peer_settings: dict[str, Any] = field(default_factory=dict)
    goal: float | None = None
    goal_ratio: float | None = None

    @property
    def learner(self) -> type[Learner]:
        return get_algorithm_spec(self.algo).learner

    @property
    def period(self) -> int:
        """Number of updates after which the variants of the learner repeat."""
        config = self.learner.Config.parse(self.settings)
        return int(getattr(config, "policy_delay", None) or 1)

    @property
    def spaces(self) -> SpaceSpec:
        return DISCRETE if self.learner.discrete else CONTINUOUS

    @property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.spaces, self.learner.extras)


AUTO = {"alpha": "auto"}
CASES = (
    Case("DQN", "dqn", peer="sb3:DQN"),
    Case("DDPG", "ddpg", peer="sb3:DDPG", goal=5000, goal_ratio=1.5),
    Case("TD3", "td3", peer="sb3:TD3", goal=5000, goal_ratio=1.5),
    Case("SAC", "sac", settings=AUTO, peer="sb3:SAC", goal=4000, goal_ratio=1.5),
    Case(
        "TQC, 2 critics",
        "tqc",
        settings=AUTO | {"num_critics": 2},
        peer="sb3_contrib:TQC",
        goal=2500,
        goal_ratio=2.0,
    ),
    Case(
        "TQC, 5 critics",
        "tqc",
        settings=AUTO,
        peer="sb3_contrib:TQC",
        peer_settings={"policy_kwargs": {"n_critics": 5}},
        goal=2500,
        goal_ratio=2.0,
    ),
    Case("REDQ-10, actor every 20", "redq", settings=AUTO | {"policy_delay": 20}, goal=5500),
    Case("REDQ-10, actor every time", "redq", settings=AUTO | {"policy_delay": 1}),
    Case(
        "SAC, SimBa",
        "sac",
        hidden=(128,),
        settings=AUTO,
        network={"network": "simba", "critic_hidden_sizes": (512,), "residual_blocks": 2},
    ),
    Case(
        "CrossQ",
        "crossq",
        peer="sb3_contrib:CrossQ",
        peer_settings={"policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}}},
    ),
    Case("FlashSAC", "flash_sac", hidden=(128,)),
    Case("BC", "bc", peer="d3rlpy:BC"),
    Case("TD3+BC", "td3_bc", peer="d3rlpy:TD3PlusBC", goal=6000),
    Case("IQL", "iql", peer="d3rlpy:IQL", goal=8300, goal_ratio=1.5),
    *(
        Case(
            f"CQL, 256×{len(hidden)}",
            "cql",
            hidden=hidden,
            settings=AUTO,
            peer="d3rlpy:CQL",
            peer_settings={"alpha_learning_rate": 0.0, "initial_alpha": 5.0, "n_action_samples": 10},
            goal=1200,
            goal_ratio=1.5,
        )
        for hidden in (TWO, THREE)
    ),
    Case("Cal-QL", "cal_ql"),
    Case("AWAC, 256×3", "awac", hidden=THREE, peer="d3rlpy:AWAC", goal=4000, goal_ratio=1.5),
    Case("CRR", "crr", peer="d3rlpy:CRR", peer_settings={"n_critics": 2}, goal=4000, goal_ratio=1.5),
    Case("EDAC-10, 256×3", "edac", hidden=THREE, settings=AUTO | {"num_critics": 10}, goal=1600),
    Case("EDAC-50, 256×3", "edac", hidden=THREE, settings=AUTO | {"num_critics": 50}, goal=700),
    Case("ReBRAC, 256×3", "rebrac", hidden=THREE),
    Case("FQL, 512×4", "fql", hidden=(512,) * 4),
    Case("RLPD, 2 critics", "rlpd", settings=AUTO | {"policy_delay": 1}),
    Case(
        "RLPD-10, LayerNorm, actor every 20",
        "rlpd",
        settings=AUTO | {"num_critics": 10, "layer_norm": True, "policy_delay": 20},
    ),
)


def find(names: list[str] | None, hidden: tuple[int, ...] | None = None) -> list[Case]:
    """The cases with these names, or all cases of an algorithm if no case has its name. Every algorithm of the
    registry has at least one case."""
    missing = {spec.name for spec in list_algorithm_specs()} - {case.algo for case in CASES}
    if missing:
        raise SystemExit(f"benchmarks/speed/cases.py has no case for {', '.join(sorted(missing))}")
    wanted, known = {name.lower() for name in names or ()}, {case.name.lower() for case in CASES}
    chosen = [c for c in CASES if not wanted or c.name.lower() in wanted or c.algo in wanted - known]
    unknown = wanted - {key for case in chosen for key in (case.algo, case.name.lower())}
    if unknown:
        raise SystemExit(f"no such algorithm or case: {', '.join(sorted(unknown))}")
    return [case if hidden is None else replace(case, hidden=hidden) for case in chosen]


def random_rows(layout: RowLayout) -> torch.Tensor:
    """Packed random rows `[ROWS, width]`: normal observations, uniform actions, few terminations."""
    g = torch.Generator().manual_seed(5)

    def actions() -> torch.Tensor:
        if layout.discrete:
            return torch.randint(ACTION_DIM, (ROWS, 1), generator=g).float()
        return 2.0 * torch.rand(ROWS, ACTION_DIM, generator=g) - 1.0

    now = actions()
    columns = (torch.randn(ROWS, OBS_DIM, generator=g), now, torch.randn(ROWS, generator=g))
    following = torch.randn(ROWS, OBS_DIM, generator=g)
    dones = (torch.rand(ROWS, generator=g) < 0.01).float()
    more = {"next_actions": actions().numpy()} if layout.extras else {}
    return torch.from_numpy(layout.pack(*(c.numpy() for c in (*columns, following, dones)), **more))


def build(case: Case, device: torch.device, *, seed: int = 0) -> Learner:
    """Build the learner of a case; the same seed gives the same networks and random numbers."""
    kind = case.learner
    config = kind.Config.parse(case.settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = kind.Network(hidden_sizes=case.hidden, **case.network)
        model = kind.build_model(case.spaces, shape, config)
        learner = kind(model=model.to(device), **case.settings)
    learner.seed(seed + 1)
    return learner


def source(case: Case, learner: Learner) -> TensorSource:
    """The case's random rows on the learner's device."""
    return TensorSource(random_rows(case.layout).to(learner.device), case.layout, learner.generator)


def updater(
    case: Case, device: torch.device, *, acceleration: Acceleration = "auto", batch: int = 256, seed: int = 0
) -> Updater:
    """The updater of a case, with its data on the device."""
    learner = build(case, device, seed=seed)
    running.accelerate(learner, acceleration)
    return Updater(learner, source(case, learner), batch)
