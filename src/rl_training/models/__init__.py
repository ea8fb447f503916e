"""Networks for flat vectors; an ensemble is an axis of its tensors."""

from rl_training.models.mlp import MLP, EnsembleLinear, EnsembleMLP, NetworkConfig
from rl_training.models.mlp_bc import MLPBCModel, MLPDiscreteBCModel
from rl_training.models.mlp_flash_sac import MLPFlashSACModel
from rl_training.models.mlp_fqe import MLPFQEModel
from rl_training.models.mlp_fql import MLPFQLModel, OneStepActor
from rl_training.models.mlp_iql import MLPDiscreteIQLModel, MLPIQLModel
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.models.mlp_sac import MLPCrossQModel, MLPSACModel, MLPTQCModel
from rl_training.models.mlp_td3 import MLPDDPGModel, MLPTD3Model
from rl_training.models.policies import (
    CategoricalActor,
    ChoiceActor,
    DeterministicActor,
    GaussianActor,
    Policy,
    TanhGaussianActor,
)

__all__ = [
    "MLP", "CategoricalActor", "ChoiceActor", "DeterministicActor", "EnsembleLinear", "EnsembleMLP",
    "GaussianActor", "MLPBCModel", "MLPCrossQModel", "MLPDDPGModel", "MLPDiscreteBCModel", "MLPDiscreteIQLModel",
    "MLPFQEModel", "MLPFQLModel", "MLPFlashSACModel", "MLPIQLModel", "MLPQNetwork", "MLPREDQModel", "MLPSACModel",
    "MLPTD3Model", "MLPTQCModel", "NetworkConfig", "OneStepActor", "Policy", "TanhGaussianActor",
]  # fmt: skip
