"""LeanRL's TD3 (github.com/meta-pytorch/LeanRL) from a checkout, in a process of its own, for `benchmarks.leanrl`.

    python -m benchmarks.leanrl_peer CHECKOUT ARGUMENTS THREADS

The script runs as it stands, with ARGUMENTS (JSON) for those of its command line; the last speed that it said, the
seconds it took, its imports apart, and versions are printed as JSON. Needs tensordict and torchrl; tyro and wandb
are stood in for.
"""

import importlib
import importlib.metadata
import json
import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

SCRIPT = Path("leanrl") / "td3_continuous_action_torchcompile.py"


def main(checkout: str, arguments: str, threads: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the script prints is no answer
    for name in ("tensordict.nn", "torchrl.data"):  # not part of the script's time
        importlib.import_module(name)
    torch.set_num_threads(int(threads))
    said: list[dict[str, Any]] = []
    stand_ins = {
        "tyro": SimpleNamespace(cli=lambda kind: kind(**json.loads(arguments))),
        "wandb": SimpleNamespace(init=lambda **_: None, log=lambda values, step: said.append(values)),
    }
    started = time.perf_counter()
    with patch.dict(sys.modules, stand_ins):
        runpy.run_path(str(Path(checkout) / SCRIPT), run_name="__main__")
    seconds = time.perf_counter() - started
    if not said:
        raise SystemExit("too few steps: it said no speed")
    names = ("torch", "tensordict", "torchrl", "gymnasium")
    versions = {name: importlib.metadata.version(name) for name in names}
    answer = {"speed": said[-1]["speed"], "seconds": seconds, "versions": versions}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
