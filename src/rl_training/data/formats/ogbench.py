"""OGBench's play data, labelled with a single task: kind `ogbench/cube-single-play-singletask-task2-v0`.

A file has `observations actions terminals` (the ends of trajectories) and `qpos qvel button_states`. OGBench's own
functions read and label it. Reward and termination are those of a row's observation, not of its successor: the
reward is the number of objects at their goals minus the number of objects, and a row terminates if it is 0. A
trajectory continues after such a row.
"""

from __future__ import annotations

import os
import zipfile

import gymnasium as gym

from rl_training.data.columns import Columns
from rl_training.data.formats.files import existing_file
from rl_training.errors import ConfigError, DatasetError, cause_of
from rl_training.ogbench import registered_id, require_ogbench


def read_ogbench(path: str | os.PathLike[str], kind: str) -> Columns:
    """The columns of a file of OGBench's layout, in memory, labelled with the task in `kind`."""
    ogbench, file, name = require_ogbench(), existing_file(path), registered_id(kind)
    if "singletask" not in name or name not in gym.registry:
        raise ConfigError(
            f"dataset_kind {kind!r} is not a single task of OGBench; expected for example "
            "'ogbench/cube-single-play-singletask-task2-v0'"
        )
    try:
        data = ogbench.load_dataset(str(file), add_info=True)
        env = gym.make(name, disable_env_checker=True)
        try:
            ogbench.utils.relabel_dataset(name, env, data)
        finally:
            env.close()
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{file}: cannot be labelled as {kind}: {cause_of(error)}") from None
    columns = {key: data[key] for key in ("observations", "actions", "rewards", "next_observations")}
    columns |= {"terminals": data["masks"] == 0, "timeouts": data["terminals"]}
    return Columns.of_arrays(
        str(file), columns | {"action_low": -1.0, "action_high": 1.0, "ends_at_timeouts": True}
    )
