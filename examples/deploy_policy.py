"""A trained policy as a filter: one observation per line of JSON in, one action per line out.

    echo '[1.0, 0.0, 0.0]' | python examples/deploy_policy.py runs/<run>/best

The folder is all it needs: no environment, no data, and it may have been moved from where it was trained. Give a
checkpoint, a run folder (its newest checkpoint) or the run's `best` folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.runtime.workflows import LoadedPolicy, load_policy, open_checkpoint


def actions(policy: LoadedPolicy, lines: Iterable[str]) -> Iterator[Any]:
    """The deterministic action, in the environment's units, for each observation."""
    for line in lines:
        if line.strip():
            yield policy.predict(json.loads(line)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Observations as JSON lines in, actions out.")
    parser.add_argument("checkpoint")
    options = parser.parse_args()
    try:
        policy = load_policy(open_checkpoint(options.checkpoint))
        for action in actions(policy, sys.stdin):
            print(json.dumps(action), flush=True)
    except (RLTrainingError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
