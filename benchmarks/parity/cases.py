"""The comparisons: our learner with its settings, the reference, and what was removed from the reference."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.parity import by_hand, references
from benchmarks.parity.lockstep import ACTIONS, BATCH, CHOICES, LEARNING_RATE, OBS, Noise, prepare
from benchmarks.parity.normalizing import FLASH_WIDTHS, RENORM_SIZES
from benchmarks.parity.players import (
    EPSILON,
    Inputs,
    Outcome,
    play_by_hand,
    play_cal_ql,
    play_corl,
    play_crossq,
    play_d3rlpy,
    play_flash_sac,
    play_fql,
    play_rebrac,
    play_redq,
)
from benchmarks.parity.references import CORL_HIDDEN, HIDDEN
from rl_training import algorithms
from rl_training.algorithms.flash_sac import FlashSAC
from rl_training.algorithms.redq import _sample_target_critic_indices
from rl_training.algorithms.rlpd import rlpd_model
from rl_training.data.extra_columns import MC_RETURNS, NEXT_ACTIONS, Column
from rl_training.models import (
    MLPBCModel,
    MLPCrossQModel,
    MLPDiscreteBCModel,
    MLPDiscreteIQLModel,
    MLPFlashSACModel,
    MLPFQEModel,
    MLPFQLModel,
    MLPIQLModel,
    MLPQNetwork,
    MLPREDQModel,
    MLPSACModel,
    MLPTD3Model,
)
from rl_training.models.batch_renorm import WARM_UP
from rl_training.models.mlp import Activation


def fqe_model(num_actions: int = 0) -> MLPFQEModel:
    """A model in normalised units, with bounds that some targets exceed."""
    model = MLPFQEModel(OBS, ACTIONS, [HIDDEN] * 2, num_actions=num_actions)
    model.set_units(offset=-0.5, scale=2.0, low=-1.5, high=1.0)
    return model


def crossq_model(batches: int, activation: Activation = "tanh") -> MLPCrossQModel:
    """A model whose norms have seen this many batches; one running mean is so wrong that d is clipped.

    Two things would enlarge rounding to 1e-10. If a ReLU is positive for a whole batch, the gradient of its bias is
    rounding, because a norm follows, and Adam divides it by its size. With large actions, 1 - a^2 has few digits.
    """
    model = MLPCrossQModel(OBS, ACTIONS, RENORM_SIZES, activation=activation)
    model.actor.net.head.weight.data *= 0.1
    for name, tensor in model.named_buffers():
        if name.endswith(".batches"):
            tensor.fill_(batches)
        elif name.endswith("norms.0.mean"):
            tensor[..., 0] = 7.0
    return model


def flash_model(**bins: Any) -> MLPFlashSACModel:
    widths, options = [[width] for width in FLASH_WIDTHS], {"num_bins": 21, "value_limit": 3.0}
    return MLPFlashSACModel(OBS, ACTIONS, widths[0], critic_hidden_sizes=widths[1], **options | bins)


def fql_model() -> MLPFQLModel:
    options: dict[str, Any] = {"activation": "gelu_tanh", "layer_norm": True, "layer_norm_epsilon": EPSILON}
    return MLPFQLModel(OBS, ACTIONS, [HIDDEN] * 2, **options)


def no_noise(_: torch.Generator) -> Noise:
    return ()


def normal_noise(*leading: int) -> Callable[[torch.Generator], Noise]:
    return lambda g: (torch.randn(*leading, BATCH, ACTIONS, generator=g),)


def redq_noise(g: torch.Generator) -> Noise:
    normal = torch.randn(2, BATCH, ACTIONS, generator=g)
    return normal, _sample_target_critic_indices(**SUBSET, generator=g)


def cql_noise(g: torch.Generator, backup_actions: int = 1) -> Noise:
    normal = torch.randn(backup_actions + CANDIDATES, 2, BATCH, ACTIONS, generator=g)
    return normal, 2.0 * torch.rand(CANDIDATES, BATCH, ACTIONS, generator=g) - 1.0


def fql_noise(g: torch.Generator) -> Noise:
    return torch.randn(3, BATCH, ACTIONS, generator=g), torch.rand(BATCH, 1, generator=g)


RATES = {"learning_rate": LEARNING_RATE, "gamma": 0.9, "tau": 0.1}
SOFT = RATES | {"alpha": "auto", "initial_alpha": 0.4, "target_entropy": -float(ACTIONS)}
SMOOTHING = {"policy_delay": 2, "target_policy_noise": 0.6, "target_noise_clip": 0.4}
SUBSET: dict[str, Any] = {"num_critics": 5, "subset_size": 2}
CANDIDATES = 5
OFFLINE_STD: dict[str, Any] = {"log_std_bounds": (-5.0, 2.0)}


@dataclass(frozen=True)
class Case:
    """One row of the table: our learner with its settings, the reference, and what was removed from the reference.

    `needs` are the command-line options that locate the reference, `package` is one that it needs in this
    environment; `draw` makes the random draws of one update.
    """

    name: str
    algo: str
    reference: str
    needs: tuple[str, ...]
    learner: str
    model: Callable[..., Any]
    settings: dict[str, Any]
    play: Callable[[argparse.Namespace, Inputs], Outcome]
    draw: Callable[[torch.Generator], Noise]
    taken_out: tuple[str, ...]
    mistakes: tuple[str, ...]
    extras: tuple[Column, ...] = ()
    discrete: bool = False
    package: str | None = None

    def build(self, **changes: Any) -> Any:
        """Build our learner; weights and noise are always the same."""
        torch.manual_seed(0)
        learner = getattr(algorithms, self.learner)
        fixed = {name: value for name, value in changes.items() if name in learner.fixed_by_model}
        return prepare(learner(model=self.model(**fixed), **self.settings | changes))


ORDER, TANH = "update order", "1e-6 in the squashed density"
BY_HAND = "by hand"
ALWAYS = ("gamma", "tau", "learning_rate")
ENTROPY = ("initial_alpha", "target_entropy")
NOISE = ("target_policy_noise", "target_noise_clip")
FAMILY = {"policy_distribution": "policy_distribution"}
CORL_CQL = Case(
    "CQL",
    "cql",
    "CORL",
    ("corl",),
    "CQL",
    lambda: MLPSACModel(OBS, ACTIONS, [CORL_HIDDEN] * 3),
    SOFT | {"actor_learning_rate": 2.0**-12, "cql_alpha": 2.0, "n_actions": CANDIDATES},
    partial(play_corl, "cql", references.cql),
    cql_noise,
    ("learned scale and shift of log std", "cloning phase"),
    (*ALWAYS, *ENTROPY, "actor_learning_rate", "cql_alpha"),
)
CAL_QL = Case(
    "Cal-QL",
    "cal_ql",
    "the authors'",
    ("cal_ql", "jax_python"),
    "CalQL",
    lambda: MLPSACModel(OBS, ACTIONS, [HIDDEN] * 2),
    SOFT | {"actor_learning_rate": 2.0**-12, "cql_alpha": 2.0} | dict.fromkeys(("n_actions", "backup_actions"), 5),
    play_cal_ql,
    partial(cql_noise, backup_actions=CANDIDATES),
    ("other draws for each loss", "learned scale and shift of log std"),
    (*ALWAYS, *ENTROPY, "actor_learning_rate", "cql_alpha"),
    extras=(MC_RETURNS,),
)
D3RLPY_AWAC = Case(
    "AWAC, softmax",
    "awac",
    "d3rlpy",
    ("d3rlpy_python",),
    "AWAC",
    lambda: MLPSACModel(OBS, ACTIONS, [HIDDEN] * 2, **OFFLINE_STD),
    RATES | {"awac_lambda": 0.5, "weighting": "softmax"},
    partial(play_d3rlpy, "AWAC", {"gamma": "gamma", "tau": "tau", "awac_lambda": "lam"} | FAMILY, {}),
    normal_noise(2),
    (ORDER, "policy family", "entropy in the backup (temperature 1)", "sum over the batch in the actor's loss"),
    (*ALWAYS, "awac_lambda"),
)
D3RLPY_CRR = Case(
    "CRR",
    "crr",
    "d3rlpy",
    ("d3rlpy_python",),
    "CRR",
    lambda: MLPSACModel(OBS, ACTIONS, [HIDDEN] * 2, **OFFLINE_STD),
    RATES | {"beta": 0.1, "max_weight": 1.5, "n_action_samples": 3},
    partial(
        play_d3rlpy,
        "CRR",
        {key: key for key in ("gamma", "tau", "beta", "max_weight", "n_action_samples")}
        | {"advantage_type": "advantage_type", "weight_type": "weight_type"}
        | FAMILY,
        {"target_update_type": "soft"},
    ),
    normal_noise(4),
    (ORDER, "policy family"),
    (*ALWAYS, "beta", "max_weight"),
)
HAND_BC = Case(
    "BC, stochastic",
    "bc",
    BY_HAND,
    (),
    "BC",
    lambda: MLPBCModel(OBS, ACTIONS, [HIDDEN] * 2, stochastic=True),
    {"learning_rate": LEARNING_RATE},
    partial(play_by_hand, by_hand.stochastic_bc),
    no_noise,
    (),
    ("learning_rate",),
)
HAND_FQE = Case(
    "FQE",
    "fqe",
    BY_HAND,
    (),
    "FQE",
    fqe_model,
    RATES | {"weight_decay": 0.125},
    partial(play_by_hand, by_hand.fqe),
    no_noise,
    (),
    (*ALWAYS, "weight_decay"),
    extras=(NEXT_ACTIONS,),
)
DISCRETE_BC = Case(
    "BC on discrete actions",
    "bc",
    "d3rlpy",
    ("d3rlpy_python",),
    "DiscreteBC",
    lambda: MLPDiscreteBCModel(OBS, CHOICES, [HIDDEN] * 2),
    {"learning_rate": LEARNING_RATE},
    partial(play_d3rlpy, "DiscreteBC", {}, {"beta": 0.0}),
    no_noise,
    ("square of the log-probabilities (beta)",),
    ("learning_rate",),
    discrete=True,
)
DISCRETE_CQL = Case(
    "CQL on discrete actions",
    "cql",
    "d3rlpy",
    ("d3rlpy_python",),
    "DiscreteCQL",
    lambda: MLPQNetwork(OBS, CHOICES, [HIDDEN] * 2),
    RATES | {"cql_alpha": 2.0},
    partial(play_d3rlpy, "DiscreteCQL", {"gamma": "gamma", "tau": "tau", "cql_alpha": "alpha"}, {}),
    no_noise,
    ("target copied whole",),
    (*ALWAYS, "cql_alpha"),
    discrete=True,
)
CROSSQ = Case(
    "CrossQ",
    "crossq",
    "sb3-contrib",
    (),
    "CrossQ",
    partial(crossq_model, 0),
    {key: value for key, value in SOFT.items() if key != "tau"} | {"policy_delay": 3},
    partial(play_crossq, False),
    normal_noise(2),
    ("unbiased variance", TANH),
    ("gamma", "learning_rate", *ENTROPY),
    package="sb3_contrib",
)
FQL = Case(
    "FQL",
    "fql",
    "the authors'",
    ("fql", "jax_python"),
    "FQL",
    fql_model,
    RATES | {"distill_coef": 3.0, "flow_steps": 4},
    play_fql,
    fql_noise,
    (),
    (*ALWAYS, "distill_coef"),
)
CASES = (
    Case(
        "REDQ",
        "redq",
        "the authors'",
        ("redq",),
        "REDQ",
        lambda: MLPREDQModel(OBS, ACTIONS, [HIDDEN] * 2, SUBSET["num_critics"]),
        SOFT | SUBSET | {"policy_delay": 2},
        play_redq,
        redq_noise,
        (TANH, "fixed alpha of the first updates"),
        (*ALWAYS, *ENTROPY),
    ),
    CROSSQ,
    replace(
        CROSSQ,
        name="CrossQ, after the warm-up",
        model=partial(crossq_model, WARM_UP + 1),
        play=partial(play_crossq, True),
        taken_out=(*CROSSQ.taken_out, "corrections without epsilon"),
    ),
    Case(
        "FlashSAC",
        "flash_sac",
        "the authors'",
        ("flash_sac",),
        "FlashSAC",
        flash_model,
        SOFT | {"target_entropy": ACTIONS * FlashSAC.entropy_per_dimension, "policy_delay": 2},
        play_flash_sac,
        normal_noise(2),
        ("schedule of the learning rate", "scale of rewards"),
        (*ALWAYS, *ENTROPY, "value_limit"),
    ),
    Case(
        "EDAC",
        "edac",
        "CORL",
        ("corl",),
        "EDAC",
        lambda: MLPREDQModel(OBS, ACTIONS, [HIDDEN] * 3, 4, **OFFLINE_STD),
        SOFT | {"num_critics": 4, "eta": 5.0},
        partial(play_corl, "edac", references.edac),
        normal_noise(2),
        (ORDER, TANH, "second draw for the temperature"),
        (*ALWAYS, *ENTROPY, "eta"),
    ),
    Case(
        "IQL",
        "iql",
        "CORL",
        ("corl",),
        "IQL",
        lambda: MLPIQLModel(OBS, ACTIONS, [HIDDEN] * 2),
        RATES | {"expectile": 0.8, "beta": 2.0, "max_weight": 1.5},
        partial(play_corl, "iql", references.iql),
        no_noise,
        ("mean over critics", "cosine of the actor's rate"),
        (*ALWAYS, "expectile", "beta", "max_weight"),
    ),
    CORL_CQL,
    replace(
        CORL_CQL,
        name="CQL, entropy in the backup",
        settings=CORL_CQL.settings | {"backup_entropy": True},
        mistakes=ALWAYS,
    ),
    replace(
        CORL_CQL,
        name="CQL, Lagrange",
        settings=CORL_CQL.settings | {"lagrange_threshold": 3.0},
        taken_out=(*CORL_CQL.taken_out, "start of the multiplier", "threshold times cql_alpha"),
        mistakes=(*ALWAYS, "cql_alpha", "lagrange_threshold"),
    ),
    CAL_QL,
    replace(
        CAL_QL,
        name="Cal-QL, Lagrange, one action in the backup, with entropy",
        settings=CAL_QL.settings | {"lagrange_threshold": 3.0, "backup_actions": 1, "backup_entropy": True},
        draw=cql_noise,
        taken_out=(*CAL_QL.taken_out, "start of the multiplier", "threshold times cql_alpha"),
        mistakes=(*ALWAYS, "cql_alpha", "lagrange_threshold"),
    ),
    Case(
        "AWAC",
        "awac",
        "CORL",
        ("corl",),
        "AWAC",
        lambda: MLPSACModel(OBS, ACTIONS, [HIDDEN] * 3, **OFFLINE_STD),
        RATES | {"awac_lambda": 0.1, "max_advantage_weight": 1.5},
        partial(play_corl, "awac", references.awac),
        normal_noise(2),
        (ORDER, "policy family"),
        (*ALWAYS, "awac_lambda", "max_advantage_weight"),
    ),
    D3RLPY_AWAC,
    replace(
        D3RLPY_AWAC,
        name="AWAC, softmax, Gaussian",
        model=lambda: MLPSACModel(OBS, ACTIONS, [HIDDEN] * 2, policy_distribution="gaussian", **OFFLINE_STD),
        taken_out=(ORDER, "one std for all states", "squashed target", *D3RLPY_AWAC.taken_out[2:]),
    ),
    D3RLPY_CRR,
    replace(
        D3RLPY_CRR,
        name="CRR, Gaussian",
        model=lambda: MLPSACModel(OBS, ACTIONS, [HIDDEN] * 2, policy_distribution="gaussian", **OFFLINE_STD),
        taken_out=(ORDER, "bounds of log std"),
    ),
    replace(
        D3RLPY_CRR,
        name="CRR, max and binary",
        settings=RATES | {"advantage_type": "max", "weight_type": "binary", "n_action_samples": 3},
        mistakes=ALWAYS,
    ),
    Case(
        "TD3+BC",
        "td3_bc",
        "CORL",
        ("corl",),
        "TD3BC",
        lambda: MLPTD3Model(OBS, ACTIONS, [CORL_HIDDEN] * 2),
        RATES | SMOOTHING | {"bc_alpha": 2.5},
        partial(play_corl, "td3_bc", references.td3_bc),
        normal_noise(),
        (ORDER,),
        (*ALWAYS, *NOISE, "bc_alpha"),
    ),
    Case(
        "ReBRAC",
        "rebrac",
        "CORL",
        ("corl", "jax_python"),
        "ReBRAC",
        lambda: MLPTD3Model(OBS, ACTIONS, [HIDDEN] * 2, layer_norm=True, layer_norm_epsilon=EPSILON),
        RATES | SMOOTHING | {"actor_bc_coef": 0.5, "critic_bc_coef": 0.2},
        play_rebrac,
        normal_noise(),
        (ORDER, "actor at the first of two updates", "target actor one step behind", "LayerNorm after the ReLU"),
        (*ALWAYS, *NOISE, "actor_bc_coef", "critic_bc_coef"),
        extras=(NEXT_ACTIONS,),
    ),
    FQL,
    replace(
        FQL,
        name="FQL, min over critics, normalised Q",
        settings=FQL.settings | {"q_aggregation": "min", "normalize_q_loss": True},
    ),
    DISCRETE_BC,
    DISCRETE_CQL,
    Case(
        "BC",
        "bc",
        "CORL",
        ("corl",),
        "BC",
        lambda: MLPBCModel(OBS, ACTIONS, [CORL_HIDDEN] * 2),
        {"learning_rate": LEARNING_RATE},
        partial(play_corl, "any_percent_bc", references.bc),
        no_noise,
        (),
        ("learning_rate",),
    ),
    HAND_BC,
    replace(
        HAND_BC,
        name="BC, Gaussian",
        model=lambda: MLPBCModel(OBS, ACTIONS, [HIDDEN] * 2, stochastic=True, policy_distribution="gaussian"),
    ),
    Case(
        "RLPD",
        "rlpd",
        BY_HAND,
        (),
        "RLPD",
        lambda: rlpd_model(OBS, ACTIONS, [HIDDEN] * 2, SUBSET["num_critics"], layer_norm=True),
        RATES | SUBSET | {"alpha": "auto", "initial_alpha": 0.4, "policy_delay": 2},
        partial(play_by_hand, by_hand.rlpd),
        redq_noise,
        (),
        (*ALWAYS, "initial_alpha"),
    ),
    Case(
        "IQL on discrete actions",
        "iql",
        BY_HAND,
        (),
        "DiscreteIQL",
        lambda: MLPDiscreteIQLModel(OBS, CHOICES, [HIDDEN] * 2),
        RATES | {"expectile": 0.75, "beta": 2.0, "max_weight": 1.5},
        partial(play_by_hand, by_hand.discrete_iql),
        no_noise,
        (),
        (*ALWAYS, "expectile", "beta", "max_weight"),
        discrete=True,
    ),
    HAND_FQE,
    replace(
        HAND_FQE,
        name="FQE on discrete actions",
        model=partial(fqe_model, CHOICES),
        play=partial(play_by_hand, partial(by_hand.fqe, choices=CHOICES)),
        discrete=True,
    ),
    replace(
        DISCRETE_BC,
        name="BC on discrete actions, by hand",
        reference=BY_HAND,
        needs=(),
        play=partial(play_by_hand, by_hand.discrete_bc),
        taken_out=(),
    ),
    replace(
        DISCRETE_CQL,
        name="CQL on discrete actions, by hand",
        reference=BY_HAND,
        needs=(),
        play=partial(play_by_hand, by_hand.discrete_cql),
        taken_out=(),
    ),
)
