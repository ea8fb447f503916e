"""Public location of `build_control_callbacks`, which is defined in `runs.controls`."""

from rl_training.runs.controls import ControlConfig, EarlyStopping, build_control_callbacks

__all__ = ["ControlConfig", "EarlyStopping", "build_control_callbacks"]
