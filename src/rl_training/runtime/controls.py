"""`build_control_callbacks`: `eval_interval`, `early_stopping` and `max_hours` as callbacks."""

from rl_training.runs.controls import ControlConfig, EarlyStopping, build_control_callbacks

__all__ = ["ControlConfig", "EarlyStopping", "build_control_callbacks"]
