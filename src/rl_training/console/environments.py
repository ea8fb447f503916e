"""`rl-training check-env`: check that an environment is suitable for training."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.display.output import show_table


def check_env(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="A Gymnasium id, module:Id or module:Class.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as env_kwargs.g=3 or wrappers."),
    ] = None,
    allow_import: Annotated[
        bool, typer.Option("--allow-import", help="Permit an id of the form module:Id.")
    ] = False,
) -> None:
    """Check an environment: spaces, observations and rewards, ends of episodes, seeding, time limit."""
    from rl_training.environments.checking import check_environment
    from rl_training.environments.tensor_checking import check_tensor_env
    from rl_training.environments.user_environments import tensor_maker
    from rl_training.experiment.config import TrainConfig
    from rl_training.runs.building import choose_device

    config = TrainConfig(algo="sac", env_id=env_id, total_timesteps=1, allow_import=allow_import)
    config = config.with_overrides(overrides or ())
    if (maker := tensor_maker(config)) is None:
        checks = check_environment(config)
    else:
        checks = check_tensor_env(maker(max(config.num_envs, 16), choose_device(config.device), config.env_kwargs))
    show_table([(check.state, check.subject, check.text) for check in checks])
    if any(check.state == "broken" for check in checks):
        raise typer.Exit(1)
