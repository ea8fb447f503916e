"""Write the tables of docs/configuration.md: every setting with its range, default and meaning.

    python -m tools.describe_config

They are read from the settings classes. The meaning of a key is its docstring; a key without one is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.data.loading import DatasetConfig, WeightedChoice
from rl_training.data.n_step import NStepConfig
from rl_training.experience.moments import ObservationConfig
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import AlgorithmSpec, list_algorithm_specs
from rl_training.models.mlp import NetworkConfig
from rl_training.runtime.controls import ControlConfig, EarlyStopping
from rl_training.runtime.offline import BudgetConfig
from rl_training.runtime.offline_to_online import FineTuning, PriorDataConfig
from rl_training.runtime.online import OnlineConfig
from rl_training.runtime.validation import ValidationConfig
from rl_training.settings import Settings
from rl_training.updates.schedules import OptimizationConfig, Schedule

SHARED: tuple[type[Settings], ...] = (
    OptimizationConfig,
    NetworkConfig,
    ControlConfig,
    ObservationConfig,
    OnlineConfig,
    NStepConfig,
    DatasetConfig,
    ValidationConfig,
    BudgetConfig,
    PriorDataConfig,
)
PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

MARKERS = ("<!-- begin settings: python -m tools.describe_config -->\n", "<!-- end settings -->\n")

# Allowed values that the type of a key does not show.
ALLOWED = {
    "alpha": "number > 0, or `auto`",
    "device": "string",
    "device_memory": "size or null",
    "host_memory": "size or null",
    "offline_batch_ratio": "number ≥ 0, ≤ 1, or `proportional`",
    "learning_rate_schedule": "name or mapping",
    "learning_starts": "whole number ≥ 0, or `auto`",
    "wrappers": "list of names or mappings",
}


def allowed(schema: Mapping[str, Any]) -> str:
    """Type and range of a JSON schema, in words."""
    if "anyOf" in schema:
        return " or ".join(allowed(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "mapping"
    words = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "string"}
    kind = schema.get("type")
    if kind == "null":
        return "null"
    if kind == "array":
        inner = allowed(schema["items"])
        return f"list of {inner}s" if inner in ("string", "number", "mapping") else f"list of: {inner}"
    if kind == "object":
        return "mapping"
    return " ".join([words[str(kind)], ", ".join(limits(schema))]).strip()


def limits(schema: Mapping[str, Any]) -> list[str]:
    """The bounds in a JSON schema, those of its choices and items included."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    own = [f"{sign} {schema[key]}" for key, sign in signs.items() if key in schema]
    return own + [limit for part in inner for limit in limits(part)]


def shown(value: Any) -> str:
    """A default as it is written in YAML."""
    if isinstance(value, Schedule):
        value = value.type
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def meaning(part: type[Settings], key: str) -> str:
    """The docstring under a key, in this class or in the parent class that declares it."""
    for owner in part.__mro__:
        info = getattr(owner, "model_fields", {}).get(key)
        if info is not None and info.description:
            return " ".join(str(info.description).split())
    raise LookupError(f"{part.__module__}.{part.__name__}: {key} has no meaning; write a docstring under the field")


def cells(part: type[Settings], key: str, defaults: Mapping[str, Any] | None = None) -> tuple[str, str, str]:
    """What is allowed, the default and the meaning; `defaults` replace those of the class."""
    info = part.model_fields[key]
    default = "required" if info.is_required() else shown(info.get_default(call_default_factory=True))
    if defaults is not None and key in defaults:
        default = shown(defaults[key])
    kind = ALLOWED.get(key) or allowed(part.model_json_schema()["properties"][key])
    return kind, default, meaning(part, key)


def rows(
    part: type[Settings], keys: Iterable[str] | None = None, defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """The table of a settings class; `defaults` are those of an algorithm that has others than the class."""
    lines = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
    for key in part.model_fields if keys is None else keys:
        lines.append(f"| `{key}` | {' | '.join(cells(part, key, defaults))} |")
    return lines


def own_defaults(spec: AlgorithmSpec) -> str:
    """The defaults of shared settings that an algorithm changes."""
    shared = {key: field.default for part in SHARED for key, field in part.model_fields.items()}
    own = {key: field.default for key, field in spec.learner.Network.model_fields.items()}
    own.update(spec.sections.defaults)
    hyperparameters = spec.learner.Config.model_fields
    changed = {key: value for key, value in own.items() if key not in hyperparameters and value != shared[key]}
    return ", ".join(f"`{key}` {shown(value)}" for key, value in changed.items())


def hyperparameters() -> list[str]:
    """The table of the settings that learners have, with the algorithms by default."""
    specs = list_algorithm_specs()
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for spec in specs:
        for key in spec.learner.Config.model_fields:
            kind, default, text = cells(spec.learner.Config, key, spec.sections.defaults)
            found.setdefault((key, kind, text), {}).setdefault(default, []).append(f"`{spec.name}`")
    lines = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
    for (key, kind, text), having in found.items():
        usual = max(having, key=lambda default: len(having[default]))
        every = sum(map(len, having.values())) == len(specs)
        words = [
            default if every and default == usual else f"{default} ({', '.join(names)})"
            for default, names in sorted(having.items(), key=lambda item: item[0] != usual)
        ]
        lines.append(f"| `{key}` | {kind} | {', '.join(words)} | {text} |")
    return lines


def algorithms() -> list[str]:
    """The table of the algorithms with other defaults of shared settings, or on discrete actions."""
    lines = ["| algorithm | defaults | on discrete actions |", "|---|---|---|"]
    for spec in list_algorithm_specs():
        changes = "" if spec.sections.discrete is None else discrete(spec)
        if changes or own_defaults(spec):
            lines.append(f"| `{spec.name}` | {own_defaults(spec)} | {changes} |")
    return lines


def discrete(spec: AlgorithmSpec) -> str:
    """The settings that discrete actions change."""
    without, others = spec.sections.changed_by_discrete_actions()
    words = [f"without {', '.join(f'`{key}`' for key in without)}"] if without else []
    words += [f"`{key}` {shown(value)}" for key, value in others.items()]
    return "; ".join(words) or "the same"


def tables() -> str:
    """All tables, with their headings."""
    parts = [
        "## Run settings\n",
        "These are the fields of `TrainConfig`.\n",
        *rows(TrainConfig),
        "\n## Settings of every algorithm\n",
        "Also `learning_rate` and `gamma`, below.\n",
        *rows(OptimizationConfig),
        *rows(NetworkConfig)[2:],
        *rows(ControlConfig)[2:],
        "\n### `early_stopping`\n\nSet `patience`, `target_return` or both.\n",
        *rows(EarlyStopping),
        "\n### `learning_rate_schedule`\n",
        *rows(Schedule),
        "\n## Online and offline-to-online training\n",
        *rows(OnlineConfig),
        "\nOnline only:\n",
        *rows(ObservationConfig),
        "\n## Returns\n",
        "All algorithms except BC:\n",
        *rows(NStepConfig),
        "\n## Data\n",
        "Offline and offline-to-online. Episodes are selected first, then rewards are scaled, then shifted.\n",
        *rows(DatasetConfig),
        "\nEach entry of `datasets` has the `dataset_…` keys and a weight:\n",
        *rows(WeightedChoice, ["weight"]),
        "\nBounds, in addition to `total_timesteps`:\n",
        *rows(BudgetConfig),
        "\nOffline only:\n",
        *rows(ValidationConfig),
        "\n## Fine-tuning and prior data\n",
        *rows(PriorDataConfig),
        "\nWith `regime: offline_to_online`, an offline algorithm has other defaults: "
        + ", ".join(f"`{key}` {shown(value)}" for key, value in FineTuning.defaults.items())
        + ".",
        "\n## Hyperparameters\n",
        *hyperparameters(),
        "\n## Defaults that differ\n",
        *algorithms(),
    ]
    return "\n".join(parts) + "\n"


def render() -> str:
    """The page with its tables as they are now."""
    begin, end = MARKERS
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    return f"{head}{begin}\n{tables()}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
