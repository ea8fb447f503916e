"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AllowImport = Annotated[
    bool,
    typer.Option("--allow-import", help="Permit settings module:Name (env, algorithm, network, …)."),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the data files that the study names by a relative path."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; overrides the study's setting.")]
Gpus = Annotated[str | None, typer.Option(metavar="0,1", help="GPUs to distribute among the workers, one each.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Run the workers on a Ray cluster: auto, local or host:port (extra `ray`)."
    ),
]
