"""The page of an algorithm: docs/algorithms/<name>.md has the text, the rest is read from the code.

    python -m tools.describe_algorithm sac      # prints the page as the site shows it

Settings come from the settings classes, departures from the learner's module docstring, presets from the heads of
the packaged configurations, metrics from one update of a small learner, results from the pages of docs/results/.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import torch

import rl_training
from rl_training.experiment.config import load_config, packaged_configs
from rl_training.experiment.metric_names import term_tag
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.settings import Settings
from rl_training.spaces import SpaceSpec
from tools.describe_config import rows

ROOT = Path(rl_training.__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "algorithms"
RESULTS = ROOT / "docs" / "results"
CONFIGS = Path(rl_training.__file__).resolve().parent / "assets" / "configs"
# The sections that an algorithm's file must have, and those it may have.
NEEDED, ALLOWED = ("Idea", "Update", "When to use it", "Citation"), ("Watching",)
# Settings with which an update reports additional terms.
VARIANTS: dict[str, dict[str, Any]] = {"bc": {"stochastic": True}, "cql": {"lagrange_threshold": 1.0}}
SECTIONS = {
    "OptimizationConfig": "Optimisation",
    "ControlConfig": "Evaluation and stopping",
    "ObservationConfig": "Observations",
    "OnlineConfig": "Collecting and replay",
    "NStepConfig": "Returns",
    "DatasetConfig": "Data",
    "ValidationConfig": "Held-out episodes",
    "BudgetConfig": "Budgets",
    "PriorDataConfig": "Prior data",
}
# Descriptions of the terms of an update, which are `train/<term>` in the log.
TERMS = {
    "loss": "Huber loss of Q against its target",
    "critic_loss": "loss of the critics, including regularisers",
    "critic_mse_loss": "the temporal-difference part of the critics' loss",
    "actor_loss": "loss of the actor",
    "value_loss": "expectile loss of the value function",
    "q_mean": "mean Q-value of the taken actions",
    "target_q_mean": "mean target of the critics; unlimited growth means overestimation",
    "q_data_std": "standard deviation among the critics at the data's actions",
    "q_policy_std": "standard deviation among the critics at the policy's actions",
    "entropy_term": "mean of alpha log pi; the policy's entropy is minus this over alpha",
    "alpha": "weight of the entropy, fixed or learned",
    "advantage_mean": "mean advantage of the data's actions over the policy's",
    "advantage_weight_mean": "mean weight of the cloned actions; if it is at the maximum, advantages are too large",
    "small_weight_share": "share of the cloned actions whose weight is below 0.01; near 1, cloning has stopped",
    "behavior_logprob_mean": "mean log-likelihood of the data's actions",
    "bc_loss": "squared distance between the policy's and the data's actions",
    "q_scale": "factor on Q in the actor's loss",
    "flow_loss": "squared error of the flow network's velocities",
    "distill_loss": "squared distance between the actor's and the flow policy's actions",
    "diversity_loss": "alignment of the critics' action gradients",
    "conservative_gap": "Q at sampled actions minus Q at the data's actions",
    "conservative_loss": "the conservative part of the critics' loss, including its weight",
    "floored_share": "share of the policy's sampled values below the return of the data",
    "multiplier": "the learned weight of the conservative penalty",
    "multiplier_loss": "loss of that weight",
}


class Table(NamedTuple):
    """A table of a page of docs/results/, with the headings above it."""

    heading: str
    caption: str
    head: list[str]
    body: list[str]


def particular(name: str) -> tuple[str, dict[str, str]]:
    """Return the title and the sections of an algorithm's file."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    head, *parts = re.split(r"^## (.+)\n", text, flags=re.M)
    sections = {heading: body.strip() for heading, body in zip(parts[::2], parts[1::2])}
    if missing := set(NEEDED) - sections.keys():
        raise LookupError(f"docs/algorithms/{name}.md: no section {sorted(missing)[0]!r}")
    if unknown := sections.keys() - {*NEEDED, *ALLOWED}:
        raise LookupError(f"docs/algorithms/{name}.md: unknown section {sorted(unknown)[0]!r}")
    return head.removeprefix("# ").strip(), sections


def departures(spec: AlgorithmSpec) -> list[str]:
    """Return the departures from the paper that the module docstring names."""
    text = " ".join((inspect.getdoc(inspect.getmodule(spec.learner)) or "").split())
    found = re.search(r"Departures?: (.+?)(?: Axes: |$)", text)
    if found is None:
        raise LookupError(f"{spec.learner.__module__}: the docstring names no departures")
    depth, items = 0, [""]
    for character in found[1].removesuffix("."):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ";" and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def preset_rows(spec: AlgorithmSpec) -> list[str]:
    """Return a table of the packaged configurations with their header comments, equal comments in one row.

    The source of the data, which many comments end with, follows the table once.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    sources: dict[str, None] = {}
    for name in packaged_configs():
        algo, _, task = name.partition("/")
        if algo != spec.name:
            continue
        lines = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        head = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
        head, source = re.fullmatch(r"(.*?)( The data set is from Minari:.*)?", head).groups()
        general = head.replace(task, "the task") if "-" in task else head
        general = general.replace(load_config(name).config.env_id or task, "the task")
        groups.setdefault(general, []).append((f"`{name}`", head))
        sources |= {source.strip(): None} if source else {}
    rows = [
        f"| {' '.join(name for name, _ in group)} | {group[0][1] if len(group) == 1 else general} |"
        for general, group in groups.items()
    ]
    lines = ["| configuration | values |", "|---|---|", *rows, "", *sources]
    return [line.replace("docs/results.md", "[Results](../results.md)") for line in lines]


def setting_tables(spec: AlgorithmSpec) -> list[tuple[str, list[str]]]:
    """Return a title and a table for each section of `algo_kwargs`; the algorithm's own section comes first."""
    own, network, *shared = spec.sections.parts

    def table(part: type[Settings]) -> list[str]:
        lines = rows(part, defaults=spec.sections.defaults)
        return [line.replace("(see below)", "(see [Settings](../configuration.md))") for line in lines]

    return [
        ("", table(own)),
        ("Networks", table(network)),
        *((SECTIONS[part.__name__], table(part)) for part in shared),
    ]


def small_learner(spec: AlgorithmSpec, options: dict[str, Any]) -> Any:
    """Return a learner whose update is quick."""
    kind = spec.learner
    spaces = (
        SpaceSpec(obs_dim=3, num_actions=2) if kind.discrete else SpaceSpec(obs_dim=3, low=(-1.0,), high=(1.0,))
    )
    model = kind.build_model(spaces, kind.Network.parse({"hidden_sizes": (8,)}), kind.Config.parse(options))
    return kind(model=model, **options)


def terms(spec: AlgorithmSpec) -> list[str]:
    """Return the terms that its updates report."""
    found: dict[str, None] = {}
    for options in ({}, VARIANTS.get(spec.name, {})):
        learner = small_learner(spec, options)
        actions = torch.zeros(4, dtype=torch.int64) if spec.learner.discrete else torch.zeros(4, 1)
        batch = {"obs": torch.randn(4, 3), "actions": actions, "rewards": torch.zeros(4)}
        batch |= {"next_obs": torch.randn(4, 3), "dones": torch.zeros(4), "next_actions": actions}
        batch |= {"mc_returns": torch.zeros(4)}
        found |= dict.fromkeys(learner.update(batch, global_step=0).metrics)
    return list(found)


def metric_rows(spec: AlgorithmSpec) -> list[str]:
    """Return the table of the terms that an update reports."""
    lines = ["| in the log | meaning |", "|---|---|"]
    return lines + [f"| `{term_tag(term)}` | {TERMS[term]} |" for term in terms(spec)]


def tables_of(text: str) -> list[Table]:
    """Return the tables of a page, in order."""
    found: list[Table] = []
    title = heading = caption = ""
    for block in re.split(r"\n{2,}", text):
        lines = [line for line in block.splitlines() if not line.startswith("<!--")]
        for line in lines:
            if line.startswith("# "):
                title, heading, caption = line.removeprefix("# "), "", ""
            elif line.startswith("## "):
                heading, caption = line.removeprefix("## "), ""
            elif line.startswith(("### ", "**")):
                caption = line.removeprefix("### ").strip()
        if len(lines) > 2 and lines[0].startswith("|") and lines[1].startswith("|-"):
            found.append(Table(": ".join(filter(None, (title, heading))), caption, lines[:2], lines[2:]))
    return found


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def labels(head: str, row: str) -> list[str]:
    """Return the cells of a row that name it: those in columns without a header or of algorithms."""
    named = [cell for name, cell in zip(cells(head), cells(row)) if name in ("", "algorithm", "class")]
    return [cell.strip("`*") for cell in named]


def of_algorithm(label: str, names: tuple[str, ...]) -> bool:
    """Whether a label is that of an algorithm (`SAC`, `RLPD with hopper-medium`), here or in another library."""
    for peer in ("Stable-Baselines3 ", "CORL ", "d3rlpy Discrete", "d3rlpy ", "published "):
        label = label.removeprefix(peer)
    return any(label == name or label.startswith((f"{name} ", f"{name},")) for name in names)


def results(names: tuple[str, ...], text: str, page: str = "") -> list[str]:
    """Return the rows of a `page` of docs/results/ for an algorithm, each table below a link to the page.

    Tables with runs of the algorithm keep the rows of the data and of other libraries.
    """
    lines: list[str] = []
    for table in tables_of(text):
        called = {row: labels(table.head[0], row) for row in table.body}
        body = [row for row in table.body if any(of_algorithm(label, names) for label in called[row])]
        if not all(any(label.startswith("published") for label in called[row]) for row in body):
            data = [row for row in table.body if any(label.startswith("the data") for label in called[row])]
            title = f"[{table.heading}](../results/{page})" + (f": {table.caption}" if table.caption else "")
            lines += [title, "", *table.head, *(row for row in table.body if row in data or row in body), ""]
    return lines


def class_of(name: str) -> str:
    """Return the public name of the class that trains an algorithm."""
    return next(
        public for public in rl_training.__all__ if getattr(getattr(rl_training, public), "algo", None) == name
    )


def render(name: str) -> str:
    """Return the whole page in MyST Markdown."""
    spec, (title, sections) = get_algorithm_spec(name), particular(name)
    managed = class_of(name)
    starter = "dqn/cartpole" if name == "dqn" else f"{name}/pendulum"
    environment = jinja2.Environment(  # noqa: S701 - makes Markdown, from files of this repository
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("_template.md").render(
        title=title,
        full=spec.title.partition(";")[0],
        spec=spec,
        managed=managed,
        starter=load_config(starter).config,
        starter_name=starter,
        sections=sections,
        departures=departures(spec),
        presets="\n".join(preset_rows(spec)),
        settings=[(heading, "\n".join(table)) for heading, table in setting_tables(spec)],
        metrics="\n".join(metric_rows(spec)),
        results="\n".join(
            line
            for page in sorted(RESULTS.glob("*.md"))
            for line in results((title, managed), page.read_text(encoding="utf-8"), page.name)
        ),
    )


if __name__ == "__main__":
    print(render(sys.argv[1]))
