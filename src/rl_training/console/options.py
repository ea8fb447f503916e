"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

AllowImport = Annotated[
    bool, typer.Option("--allow-import", help="Permit settings module:Name (env, algorithm, network, …).")
]
POLICY = "A run folder, one of its checkpoints, its best/, or a published policy such as gallery/sac."
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the data files that the study names by a relative path."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; overrides the study's setting.")]
Gpus = Annotated[str | None, typer.Option(metavar="0,1", help="GPUs to distribute among the workers, one each.")]
OutputDir = Annotated[str | None, typer.Option(help="Folder that receives the run folder.")]
Policy = Annotated[Path | None, typer.Argument(metavar="CHECKPOINT|RUN_DIR", help=POLICY)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, learning_rate=1e-3 for example; may be repeated."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Run the workers on a Ray cluster: auto, local or host:port (extra `ray`)."
    ),
]
RunDevice = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Seeds = Annotated[str | None, typer.Option(metavar="0..9|0,3,7", help="Train several runs at once, one per seed.")]


def require_one(seed: int | None, seeds: str | None) -> None:
    """Raise if both --seed and --seeds are given."""
    if seed is not None and seeds is not None:
        raise typer.BadParameter("give --seed or --seeds")


def number(steps: str) -> Any:
    """Parse the value of --steps, such as `1e5`, as YAML."""
    from rl_training.experiment.strict_yaml import parse_yaml

    return parse_yaml(steps, "--steps").value if steps.strip() else steps
