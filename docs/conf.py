"""Configuration of Sphinx for `make docs`; the extension of this project is `tools/docs_site.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import rl_training  # noqa: E402
from tools.docs_site import ALIASES  # noqa: E402

project = "rl_training"
release = version = rl_training.__version__
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "tools.docs_site"]
exclude_patterns = ["algorithms/_template.md", "plans"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_dmath_double_inline = False
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
# Types of other projects: their inventories are not downloaded, because a build must not need the network.
nitpick_ignore_regex = [
    (r"py:.*", r"(annotated_types|collections|gymnasium|matplotlib|np|numpy|os|pathlib|pydantic|torch|typing)\..*"),
    (r"py:class", "|".join(("Module", "NoneType", "Path", "Selection", "Tensor", *ALIASES))),
    # Parts of a session that only a run constructs, and annotations that only a type checker resolves.
    (r"py:class", r"Regime|RunDirectory|MetricsLog|Progress|SignalGuard|Evaluator|tuple\[float \| None|dict\[str"),
]
# Types of this project that appear in signatures and that callers do not construct.
nitpick_ignore = [
    ("py:class", f"rl_training.{name}")
    for name in (
        "algorithms.execution.DeviceRandom",
        "algorithms.execution.HeldNoise",
        "algorithms.execution.JointRandom",
        "data.columns.Columns",
        "data.extra_columns.Column",
        "data.sources.Part",
        "environments.user_environments.UserEnvironments",
        "models.networks.NetworkOptions",
        "models.mlp_q.GreedyQ",
        "models.policies.ActionSample",
        "models.policies.Normalizer",
        "report.reading.Reading",
        "report.statistics.Estimate",
        "report.summary.Summary",
        "observation_spaces.Flattening",
        "runs.spec.RunOptions",
        "study.plan.Plan",
    )
]

html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"rl_training {release}"
html_static_path = ["_static", "pictures"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
