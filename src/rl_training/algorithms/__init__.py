"""Learners: the mathematics of each algorithm, in a page."""

from rl_training.algorithms.awac import AWAC, awac_loss
from rl_training.algorithms.base import Learner, LearnerConfig, UpdateResult
from rl_training.algorithms.bc import BC, bc_loss
from rl_training.algorithms.cal_ql import CalQL, cal_ql_loss
from rl_training.algorithms.cql import CQL, cql_loss
from rl_training.algorithms.crossq import CrossQ, crossq_loss
from rl_training.algorithms.crr import CRR, crr_loss
from rl_training.algorithms.ddpg import DDPG, ddpg_loss
from rl_training.algorithms.discrete_bc import DiscreteBC
from rl_training.algorithms.discrete_cql import DiscreteCQL, discrete_cql_loss
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.edac import EDAC, critic_diversity_loss, edac_loss
from rl_training.algorithms.flash_sac import FlashSAC, flash_sac_loss
from rl_training.algorithms.fqe import FQE, fqe_loss
from rl_training.algorithms.fql import FQL, fql_loss
from rl_training.algorithms.iql import IQL, DiscreteIQL, iql_loss
from rl_training.algorithms.rebrac import ReBRAC, rebrac_loss
from rl_training.algorithms.redq import REDQ, redq_loss
from rl_training.algorithms.rlpd import RLPD, rlpd_loss
from rl_training.algorithms.sac import SAC, sac_loss
from rl_training.algorithms.td3 import TD3, td3_loss
from rl_training.algorithms.td3_bc import TD3BC, td3_bc_loss
from rl_training.algorithms.tqc import TQC, tqc_loss

AWACAlgorithm = AWAC
BCAlgorithm = BC
CQLAlgorithm = CQL
CRRAlgorithm = CRR
CalQLAlgorithm = CalQL
CrossQAlgorithm = CrossQ
DDPGAlgorithm = DDPG
DQNAlgorithm = DQN
DiscreteBCAlgorithm = DiscreteBC
DiscreteCQLAlgorithm = DiscreteCQL
DiscreteIQLAlgorithm = DiscreteIQL
EDACAlgorithm = EDAC
FQEAlgorithm = FQE
FQLAlgorithm = FQL
FlashSACAlgorithm = FlashSAC
IQLAlgorithm = IQL
REDQAlgorithm = REDQ
ReBRACAlgorithm = ReBRAC
RLPDAlgorithm = RLPD
SACAlgorithm = SAC
TD3Algorithm = TD3
TD3BCAlgorithm = TD3BC
TQCAlgorithm = TQC

__all__ = [
    "AWAC", "BC", "CQL", "CRR", "DDPG", "DQN", "EDAC", "FQE", "FQL", "IQL", "REDQ", "RLPD", "SAC", "TD3", "TD3BC",
    "TQC", "AWACAlgorithm", "BCAlgorithm", "CQLAlgorithm", "CRRAlgorithm", "CalQL", "CalQLAlgorithm", "CrossQ",
    "CrossQAlgorithm", "DDPGAlgorithm", "DQNAlgorithm", "DiscreteBC", "DiscreteBCAlgorithm", "DiscreteCQL",
    "DiscreteCQLAlgorithm", "DiscreteIQL", "DiscreteIQLAlgorithm", "EDACAlgorithm", "FQEAlgorithm", "FQLAlgorithm",
    "FlashSAC", "FlashSACAlgorithm", "IQLAlgorithm", "Learner", "LearnerConfig", "REDQAlgorithm", "RLPDAlgorithm",
    "ReBRAC", "ReBRACAlgorithm", "SACAlgorithm", "TD3Algorithm", "TD3BCAlgorithm", "TQCAlgorithm", "UpdateResult",
    "awac_loss", "bc_loss", "cal_ql_loss", "cql_loss", "critic_diversity_loss", "crossq_loss", "crr_loss",
    "ddpg_loss", "discrete_cql_loss", "dqn_loss", "edac_loss", "flash_sac_loss", "fqe_loss", "fql_loss", "iql_loss",
    "rebrac_loss", "redq_loss", "rlpd_loss", "sac_loss", "td3_bc_loss", "td3_loss", "tqc_loss",
]  # fmt: skip
