"""Reports of runs in every state; the page is safe, complete and self-contained."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest

from rl_training import report
from rl_training.errors import ConfigError
from rl_training.report import figures
from rl_training.report.curves import band, first_above
from rl_training.report.logs import Curve
from rl_training.report.rendering import rendered
from rl_training.report.report import Report
from rl_training.report.statistics import Estimate
from rl_training.report.summary import Pair
from rl_training.report.tables import verdict
from rl_training.report.tasks import data_name
from tests.report_files import curve_to, record_of, settings_of, two_methods, write_run
from tests.report_pages import Page, require_alone
from tests.runs import mostly_slow

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $\\frac{ & </style> 🤖 训练"


@pytest.fixture
def with_pdf(drawn: None) -> None:
    """For tests of the page as it is written; the others do without figures in PDF, which take most of its time."""


@pytest.fixture
def drawn() -> None:
    """For tests that draw the page's figures; the others build them and leave their places in the page empty."""


@pytest.fixture(autouse=True)
def _fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_pdf" not in request.fixturenames:
        monkeypatch.setattr("rl_training.report.page.rendered", lambda *_: b"%PDF")
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("rl_training.report.page.svg_with_seeds", lambda *_: "<?xml?><svg></svg>")


def words(found: Report) -> str:
    return Page(found.html()).words


def test_the_page_is_self_contained_and_names_the_better_method(tmp_path: Path, drawn: None) -> None:
    found = report.read(two_methods(tmp_path, ("Pendulum-v1", "Hopper-v5")))
    page = require_alone(found.html())
    assert "sac is better than td3 over all tasks: difference of the IQM" in page.words
    assert "sac is better than td3 on Hopper-v5" in page.words
    assert "td3 is better" not in page.words
    assert "</li><li>" not in found.html()
    assert "play the same episodes" in page.words
    for heading in ("Over all tasks", "Learning curves", "What was compared", "Normalisation"):
        assert heading in page.words
    assert "D4RL's reference returns" in page.words
    assert "the lowest and the highest result" in page.words
    assert page.tags.count("svg") == len(found.figures) == 11
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def hostile_runs(folder: Path) -> Path:
    for seed in range(3):
        for task in (HOSTILE, "Pendulum-v1"):
            settings = settings_of("sac", task, activation=HOSTILE if seed == 2 else "relu") | {"tags": [HOSTILE]}
            record = {
                "cause": HOSTILE,
                "status": "diverged",
                "host": HOSTILE,
                "dataset": {"name": HOSTILE, "rows": 3},
            }
            values = curve_to(float(seed))
            write_run(folder / f"{seed}{len(task)}", values, seed=seed, settings=settings, **record)
    write_run(folder / "<b>broken").joinpath("run.json").write_text('{"algo": "<script>"}')
    return folder


@pytest.mark.parametrize("by", ["settings", "tags", "path"])
def test_hostile_names_stay_text(tmp_path: Path, by: str) -> None:
    found = report.read(hostile_runs(tmp_path), by=by, title=HOSTILE)
    assert " ".join(HOSTILE.split()) in require_alone(found.html()).words
    assert json.loads(found.json())["title"] == HOSTILE
    latex = found.tables["troubles"].latex()
    assert r"\$\textbackslash{}frac\{ \& " in latex


@pytest.mark.slow
@pytest.mark.parametrize("by", mostly_slow(("settings", "tags", "path"), "settings"))
def test_hostile_names_stay_text_in_figures(tmp_path: Path, by: str, drawn: None) -> None:
    found = report.read(hostile_runs(tmp_path), by=by, title=HOSTILE)
    assert " ".join(HOSTILE.split()) in require_alone(found.html()).words
    assert rendered(found.curves(seeds=True))


def test_what_cannot_be_shown_is_replaced(tmp_path: Path, drawn: None) -> None:
    """Halves of pairs, NUL, escape sequences and turned text, in records, reasons and names of folders."""
    odd = "a\ud800\x00\x1b[31m\u202eb"
    for seed in range(2):
        folder = write_run(tmp_path / f"{seed}\udcff", seed=seed, settings=settings_of("sac", "Pendulum-v1"))
        record = record_of(folder) | {"env_id": odd, "cause": odd, "status": "diverged", "host": odd}
        (folder / "run.json").write_text(json.dumps(record))
    (write_run(tmp_path / "broken\udcff") / "run.json").write_text(json.dumps({"algo": odd}))
    found = report.read(tmp_path)
    found.save(tmp_path / "report.html")
    assert found.summary.groups.tasks == ("a\ufffd\ufffd\ufffd[31m\ufffdb",)
    for text in ((tmp_path / "report.html").read_text(), (tmp_path / "report.json").read_text(), found.html()):
        assert not re.search("[\x00\x1b\u202e\ud800-\udfff]", text)


def test_methods_compared_at_different_steps_are_reported(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", curve_to(3.0, 4), seed=seed)
        write_run(tmp_path / f"b{seed}", curve_to(3.0, 8), seed=seed, settings=settings_of("td3"))
    notice = "On Pendulum-v1 methods are compared at different steps: sac at 400, td3 at 800"
    assert notice in words(report.read(tmp_path))
    assert "at different steps" not in words(report.read(tmp_path, at=400))


def test_a_spreadsheet_gets_no_formula(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / str(seed), seed=seed, settings=settings_of("=cmd()", "@SUM"))
    rows = list(csv.reader(io.StringIO(report.read(tmp_path).tables["tasks"].csv())))
    assert rows[1][:2] == ["'@SUM", "'=cmd()"]


def test_a_negative_mean_is_a_plain_text_in_csv(tmp_path: Path) -> None:
    def means(place: Path) -> list[str]:
        return [row["mean ± std"] for row in csv.DictReader(io.StringIO(report.read(place).tables["tasks"].csv()))]

    for seed in range(2):
        write_run(tmp_path / str(seed), [-16.0 - seed], seed=seed)
    for paths, text in ((tmp_path, "-16.50 ± 0.71"), (tmp_path / "0", "-16.00 (one seed)")):
        assert means(paths) == [text]
    for seed in range(2):
        write_run(tmp_path / "small" / str(seed), [-2e-7 * (1 + seed)], seed=seed)
    assert means(tmp_path / "small") == ["-3e-07 ± 1.4e-07"]


def test_downloads_are_inside_the_page(tmp_path: Path, with_pdf: None) -> None:
    found = report.read(two_methods(tmp_path))
    page = Page(found.html())
    files = [value for _, name, value in page.attributes if name == "download"]
    for name in found.tables:
        assert {f"{name}.csv", f"{name}.md", f"{name}.tex"} <= set(files)
    for name in found.figures:
        assert {f"{name}.svg", f"{name}.pdf"} <= set(files)
    addresses = [value for _, name, value in page.attributes if name == "href" and value.startswith("data:")]
    kinds = [b64decode(value.partition(",")[2])[:4] for value in addresses]
    assert kinds.count(b"%PDF") == kinds.count(b"<?xm") == len(found.figures)


def test_every_state_is_reported(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"whole{seed}", curve_to(10.0 + seed), seed=seed)
    write_run(tmp_path / "diverged", [1.0], seed=3, status="diverged", cause="loss is NaN")
    write_run(tmp_path / "failed", [1.0], seed=4, status="failed", cause="the environment fell over")
    write_run(tmp_path / "running", [1.0], seed=5, status="running")
    write_run(tmp_path / "interrupted", [1.0], seed=6, status="interrupted")
    write_run(tmp_path / "silent", [], seed=7)
    write_run(tmp_path / "again", [99.0], seed=0, created="2020-01-01T00:00:00+00:00")
    (write_run(tmp_path / "broken") / "run.json").write_text("{")
    (tmp_path / "empty").mkdir()
    found = report.read(tmp_path)
    assert found.summary.results["sac", "Pendulum-v1"].seeds == 4  # the whole ones, and what diverged
    rows = {Path(row["run"]).name: row for row in found.tables["troubles"].records()}
    assert {name: row["effect"] for name, row in rows.items()} == {
        "diverged": "counted",
        "failed": "not counted",
        "running": "not counted",
        "interrupted": "not counted",
        "silent": "not counted",
        "again": "not counted",
        "broken": "not counted",
    }
    assert "loss is NaN" in rows["diverged"]["because"]
    assert "the environment fell over" in rows["failed"]["because"]
    assert "without an evaluation" in rows["silent"]["because"]
    assert "whole0" in rows["again"]["because"]
    text = words(found)
    assert "7 remarks on runs" in text
    for name in rows:
        assert str(tmp_path / name) in text
    counted = report.read(tmp_path, unfinished=True)
    assert counted.summary.results["sac", "Pendulum-v1"].seeds == 7


def test_a_single_seed_is_reported_and_has_no_interval(tmp_path: Path, drawn: None) -> None:
    found = report.read(two_methods(tmp_path, seeds=1))
    text = words(found)
    assert "One seed does not show the spread" in text
    assert "is better" not in text
    assert "(one seed)" in text
    assert found.tables["tasks"].records()[0]["IQM, last low"] is None


@pytest.mark.parametrize(("low", "said"), [(0.48, ", but the interval of P contains 0.5"), (0.51, "")])
def test_a_better_method_that_may_win_no_more_often(low: float, said: str) -> None:
    pair = Pair("awac", "bc", None, Estimate(303.0, 18.8, 632.0), Estimate(0.78, low, 1.0), None, enough=True)
    assert verdict(pair) == f"awac is better{said}"


def test_three_seeds_on_one_task_are_too_few(tmp_path: Path) -> None:
    """However far apart the methods are."""
    found = report.read(two_methods(tmp_path, seeds=3))
    assert [row["verdict"] for row in found.tables["differences"].records()] == ["too few seeds to tell"]
    text = words(found)
    assert "is better than" not in text
    assert "Too few seeds to tell. A comparison on one task needs at least 4 seeds per method." in text
    assert "No difference" not in text


def test_a_report_without_usable_runs(tmp_path: Path, drawn: None) -> None:
    write_run(tmp_path / "a", [1.0, 2.0], status="running")
    write_run(tmp_path / "b", [], status="failed", settings=settings_of("td3"))
    found = report.read(tmp_path)
    text = words(found)
    assert "No run has a result that counts" in text
    assert "Learning curves" in text
    assert json.loads(found.json())["results"] == []
    (tmp_path / "a" / "metrics.csv").unlink()
    assert "Learning curves" not in words(report.read(tmp_path))


def test_runs_of_unequal_length() -> None:
    def line(points: int) -> Curve:
        steps = np.arange(1, points + 1, dtype=float)
        return Curve(steps, steps, steps, steps * 2)

    found = band([line(10), line(10), line(6), line(2)], "steps")
    assert found is not None
    assert found.x.tolist() == list(range(1, 11))
    assert found.runs.tolist() == [4, 4, 3, 3, 3, 3, 2, 2, 2, 2]
    assert found.middle.tolist() == pytest.approx((found.x * 2).tolist())
    short = band([line(10), line(2), line(2)], "updates")
    assert short is not None
    assert short.x.tolist() == [1, 2]  # only one has come further
    alone = band([line(3)], "seconds")
    assert alone is not None
    assert np.isnan(alone.low).all()


def test_an_axis_that_is_missing_in_the_logs_is_omitted() -> None:
    steps = np.array([1.0, 2.0])
    assert band([Curve(steps, np.array([np.nan, np.nan]), steps, steps)], "updates") is None


def test_steps_to_a_threshold(tmp_path: Path) -> None:
    for seed, values in enumerate([[1.0, 5.0, 9.0], [6.0, 7.0, 8.0], [1.0, 1.0, 1.0]]):
        write_run(tmp_path / str(seed), values, seed=seed)
    steps = np.array([1.0, 2.0])
    assert first_above(Curve(steps, steps, steps, steps), 3.0) is None
    for threshold, reached, steps_to in ((5.0, 2, 200), (8.5, 1, None), (1.0, 3, 100)):
        [row] = report.read(tmp_path, threshold=threshold).tables["tasks"].records()
        assert (row["reached by"], row["steps to it"]) == (f"{reached}/3", steps_to)
    [row] = report.read(tmp_path, threshold={"Pendulum-v1": 5.0}).tables["tasks"].records()
    assert row["threshold"] == 5.0


def test_last_best_and_at_a_step(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / str(seed), [1.0, 9.0, 3.0], seed=seed)
    write_run(tmp_path / "short", [1.0], seed=2, status="running")

    def mean(**options: object) -> float:
        return report.read(tmp_path, **options).summary.results["sac", "Pendulum-v1"].mean  # type: ignore[arg-type]

    assert (mean(), mean(score="best"), mean(at=200)) == (3.0, 9.0, 9.0)
    assert mean(at=100) == 1.0
    assert report.read(tmp_path, at=100).summary.results["sac", "Pendulum-v1"].seeds == 3
    best = words(report.read(tmp_path, score="best", at=200))
    assert "is its best evaluation up to step 200, which favours" in best


def test_a_run_that_stopped_early_counts_with_a_remark(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", [1.0, 9.0, 3.0])
    write_run(tmp_path / "short", [1.0], seed=1, status="stopped", stop_reason="max_hours 1 reached")
    found = report.read(tmp_path)
    assert found.summary.results["sac", "Pendulum-v1"].seeds == 2
    [row] = found.tables["troubles"].records()
    assert (Path(row["run"]).name, row["is"], row["effect"]) == ("short", "stopped", "counted")
    assert row["because"] == "counts with its evaluations up to step 100: max_hours 1 reached"


def test_of_two_runs_of_a_seed_the_one_that_reached_the_step_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "older", [1.0, 4.0, 5.0], status="interrupted", created="2020-01-01T00:00:00+00:00")
    write_run(tmp_path / "newer", [2.0], status="interrupted")
    found = report.read(tmp_path, at=200)
    assert found.summary.results["sac", "Pendulum-v1"].values.tolist() == [4.0]
    [row] = found.tables["troubles"].records()
    assert (Path(row["run"]).name, row["is"], row["effect"]) == ("newer", "repeated", "not counted")


def test_a_run_that_diverged_before_a_step_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", [1.0, 9.0, 3.0])
    write_run(tmp_path / "diverged", [1.0, -5.0], seed=1, status="diverged", cause="loss is NaN")
    write_run(tmp_path / "failed", [1.0, 7.0], seed=2, status="failed")
    values = {at: report.read(tmp_path, at=at).summary.results["sac", "Pendulum-v1"].values for at in (200, 300)}
    assert {at: sorted(found.tolist()) for at, found in values.items()} == {200: [-5.0, 7.0, 9.0], 300: [-5.0, 3.0]}
    rows = {Path(row["run"]).name: row for row in report.read(tmp_path, at=300).tables["troubles"].records()}
    assert rows["diverged"]["because"] == "counts with its evaluations up to step 200: loss is NaN"
    assert {name: row["effect"] for name, row in rows.items()} == {"diverged": "counted", "failed": "not counted"}


def test_a_run_without_an_evaluation_up_to_a_step_does_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "late", [1.0, 9.0], every=200)
    write_run(tmp_path / "early", [2.0, 3.0], every=100, seed=1)
    found = report.read(tmp_path, at=150)
    assert found.summary.results["sac", "Pendulum-v1"].values.tolist() == [2.0]
    [trouble] = found.summary.troubles
    assert (trouble.reason, trouble.effect) == ("its first evaluation is at step 200", "not counted")
    assert not report.read(tmp_path, at=50).summary.results


def fine_tuned(
    folder: Path, sources: Iterable[Path], seeds: Iterable[int], inside: str = ""
) -> dict[str, list[int]]:
    """Write a run from each source; return the seeds of each method in their report."""
    for number, (source, seed) in enumerate(zip(sources, seeds)):
        settings = settings_of() | {"init_from": str(source / inside)}
        write_run(folder / f"{number}", curve_to(1.0), seed=seed, settings=settings)
    groups = report.read(folder).summary.groups
    return {method: [run.seed or 0 for run in groups.cell(method, "Pendulum-v1").runs] for method in groups.methods}


@pytest.mark.parametrize("inside", ["", "checkpoints/step_000000400"])
def test_runs_from_the_seeds_of_one_method_are_one_method(inside: str, tmp_path: Path) -> None:
    sources = [write_run(tmp_path / f"offline{seed}", seed=seed) for seed in range(3)]
    assert fine_tuned(tmp_path / "tuned", sources, range(3), inside) == {"sac": [0, 1, 2]}
    [settings] = {run.settings["init_from"] for run in report.read(tmp_path / "tuned").summary.reading.runs}
    assert settings == f"{sources[0] / inside} and 2 of other seeds"


def test_runs_from_other_methods_are_other_methods(tmp_path: Path) -> None:
    """Also those from a source that is gone, and those of one seed from several sources."""
    kwargs = settings_of()["algo_kwargs"] | {"gamma": 0.5}
    sources = [
        write_run(tmp_path / "a0", seed=0),
        write_run(tmp_path / "a1", seed=1),
        write_run(tmp_path / "b0", seed=0, settings=settings_of() | {"algo_kwargs": kwargs}),
        tmp_path / "gone",
    ]
    assert sorted(fine_tuned(tmp_path / "tuned", sources, [0, 1, 2, 3]).values()) == [[0, 1], [2], [3]]
    assert sorted(fine_tuned(tmp_path / "same", sources[:2], [0, 0]).values()) == [[0], [0]]


@pytest.mark.parametrize(
    ("name", "values"), [("n_step", (1, 3)), ("network", ("mlp", "simba")), ("bf16", (False, True))]
)
def test_settings_since_0_2_distinguish_methods(tmp_path: Path, name: str, values: tuple[Any, Any]) -> None:
    """Runs of 0.2 count as those with the default, which are identified without it."""
    for number, value in enumerate((None, *values)):
        settings = settings_of("iql", buffer_capacity=9) | {"regime": "offline_to_online"}
        if value is not None:
            (settings if name == "bf16" else settings["algo_kwargs"])[name] = value
        write_run(tmp_path / str(number), [1.0, 10.0 * number], seed=number, settings=settings)
    write_run(tmp_path / "offline", settings=settings_of("iql", "Hopper-v5"))
    found = report.read(tmp_path)
    usual, other = (f"iql ({name}={value})" for value in values)
    assert found.summary.methods == (usual, other, "iql")
    assert found.summary.results[usual, "Pendulum-v1"].values.tolist() == [0.0, 10.0]
    assert found.summary.results[other, "Pendulum-v1"].values.tolist() == [20.0]
    [row] = [row for row in found.tables["compared"].records() if row["method"] == other]
    assert f"{name}={values[1]}" in row["differs from its base"]
    assert not [trouble for trouble in found.summary.troubles if trouble.what == "repeated"]


def test_methods_are_what_differs_on_one_task(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings=settings_of(gamma=0.9))
    write_run(tmp_path / "b", settings=settings_of(gamma=0.99))
    longer = settings_of(env_id="Hopper-v5", gamma=0.9) | {"total_timesteps": 5000, "log_interval": 7}
    write_run(tmp_path / "c", settings=longer)
    old = settings_of(gamma=0.9)
    del old["algo_kwargs"]["hidden_sizes"]  # a version that did not have the setting
    write_run(tmp_path / "d", seed=1, settings=old)
    found = report.read(tmp_path)
    assert found.summary.methods == ("sac (gamma=0.9)", "sac (gamma=0.99)")
    assert found.summary.results["sac (gamma=0.9)", "Pendulum-v1"].seeds == 2
    rows = {(row["task"], row["method"]): row for row in found.tables["compared"].records()}
    assert rows["Hopper-v5", "sac (gamma=0.9)"]["differs from its base"] == "total_timesteps=5000"
    assert rows["Pendulum-v1", "sac (gamma=0.99)"]["differs from its base"] == "gamma=0.99"
    assert rows["Pendulum-v1", "sac (gamma=0.9)"]["seeds"] == "0–1"
    named = report.read(tmp_path, names={"sac (gamma=0.9)": "short-sighted", "Hopper-v5": "Hopper"})
    assert ("short-sighted", "Hopper") in named.summary.results


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"metric": "eval_lenth_mean"},
            r"no run has evaluations of eval_lenth_mean; did you mean 'eval_length_mean'\?; known: eval_",
        ),
        ({"names": {"sca": "SAC"}}, r"names: no run has 'sca'; did you mean 'sac'\?; known: sac, Pendulum-v1$"),
        ({"references": {"Nonsense": (0.0, 1.0)}}, "references: no run has 'Nonsense'; known: Pendulum-v1$"),
        ({"threshold": {"Nonsense": 1.0}}, "threshold: no run has 'Nonsense'; known: Pendulum-v1$"),
    ],
    ids=["metric", "names", "references", "threshold"],
)
def test_unknown_names_are_errors(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_run(tmp_path / "a")
    with pytest.raises(ConfigError, match=message):
        report.read(tmp_path, **options)


def test_a_method_of_several_settings_has_those_that_all_its_runs_share(tmp_path: Path) -> None:
    for number, gamma in enumerate((0.9, 0.95, 0.99)):
        write_run(tmp_path / str(number), settings=settings_of(gamma=gamma, tau=min(gamma, 0.95)))
    names = {"sac (gamma=0.95, tau=0.95)": "far", "sac (gamma=0.99, tau=0.95)": "far"}
    summary = report.read(tmp_path, names=names).summary
    assert summary.groups.legend == {"far": "tau=0.95"}
    assert [(one.setting, one.values) for one in summary.effects] == [("tau", (0.9, 0.95))]


def test_settings_that_look_alike_are_distinguished(tmp_path: Path) -> None:
    rates = (0.30000000000000004, 0.30000000000000010, 0.123456789)
    for number, rate in enumerate(rates):
        write_run(tmp_path / str(number), settings=settings_of(tau=rate, hidden_sizes=[number] * 100))
    assert len(set(report.read(tmp_path).summary.methods)) == 3
    for number, rate in enumerate(rates):
        write_run(tmp_path / f"b{number}", settings=settings_of("td3", tau=rate))
    methods = report.read(tmp_path).summary.methods
    assert methods[3:] == (f"td3 (tau={rates[0]})", f"td3 (tau={rates[1]})", "td3 (tau=0.1235)")


def test_a_repeated_run_without_evaluations_does_not_displace_another(tmp_path: Path) -> None:
    write_run(tmp_path / "older", [4.0], created="2020-01-01T00:00:00+00:00")
    write_run(tmp_path / "newer", [])
    found = report.read(tmp_path)
    assert found.summary.results["sac", "Pendulum-v1"].mean == 4.0
    assert [Path(row["run"]).name for row in found.tables["troubles"].records()] == ["newer"]


def test_methods_with_one_name_keep_their_runs(tmp_path: Path) -> None:
    for gamma in (0.9, 0.99):
        for seed in (0, 1):
            write_run(tmp_path / f"{gamma}-{seed}", [gamma], seed=seed, settings=settings_of(gamma=gamma))
    names = {f"sac (gamma={gamma})": "x" for gamma in (0.9, 0.99)}
    for options in ({"names": names}, {"by": "path"}):
        (result,) = report.read(tmp_path, **options).summary.results.values()
        assert (result.seeds, result.mean) == (4, pytest.approx(0.945))


def test_methods_by_path_and_tags(tmp_path: Path) -> None:
    for name in ("before", "after"):
        settings = settings_of() | {"tags": [name]}
        write_run(tmp_path / name / "run", settings=settings)
    assert report.read([tmp_path / "before", tmp_path / "after"], by="path").summary.methods == (
        "before: sac",
        "after: sac",
    )
    assert set(report.read(tmp_path, by="tags").summary.methods) == {"sac (before)", "sac (after)"}
    for seed, tags in enumerate((["x", "y"], ["y", "x"])):
        write_run(tmp_path / "both" / str(seed), seed=seed, settings=settings_of() | {"tags": tags})
    assert report.read(tmp_path / "both", by="tags").summary.methods == ("sac (x, y)",)
    alike = [write_run(tmp_path / name / "same").parent / "same" for name in ("c", "d")]
    assert report.read(alike, by="path").summary.methods == tuple(f"{path}: sac" for path in alike)
    with pytest.raises(ConfigError, match="by must be one of"):
        report.read(tmp_path, by="colour")


def test_offline_tasks_are_their_data(tmp_path: Path) -> None:
    for number, (name, mark) in enumerate([("medium", "aa"), ("expert", "bb"), ("expert", "cc")]):
        data = {"name": name, "rows": 10, "fingerprint": mark, "in_memory": False}
        write_run(tmp_path / str(number), settings=settings_of("iql", dataset_path=name), dataset=data)
    found = report.read(tmp_path)
    assert found.summary.groups.tasks == (
        "Pendulum-v1, medium",
        "Pendulum-v1, expert [bb]",
        "Pendulum-v1, expert [cc]",
    )
    assert found.summary.methods == ("iql",)
    assert "medium (10 rows, fingerprint aa)" in found.tables["compared"].csv()


@pytest.mark.parametrize(
    ("first", "second", "tasks"),
    [
        ({"reward_scale": 1.0}, {"reward_scale": 0.1}, 1),
        ({"reward_range_scaling": False}, {"reward_range_scaling": True}, 1),
        ({"top_fraction": 1.0}, {"top_fraction": 0.1, "rows": 1}, 1),
        ({"reward_scale": 0.1}, {"reward_scale": 0.1}, 2),
        ({"reward_scale": 1.0}, {"reward_scale": 0.1, "rows": 20}, 2),
    ],
)
def test_data_that_two_runs_prepare_differently_are_one_task(
    first: dict[str, Any], second: dict[str, Any], tasks: int, tmp_path: Path
) -> None:
    for algo, mark, prepared in (("bc", "aa", first), ("iql", "bb", second)):
        data = {"name": "medium", "rows": 10, "fingerprint": mark, "in_memory": False}
        data |= {"rows": prepared["rows"]} if "rows" in prepared else {}
        settings = {key: value for key, value in prepared.items() if key != "rows"}
        write_run(tmp_path / algo, settings=settings_of(algo, **settings), dataset=data)
    assert len(report.read(tmp_path).summary.groups.tasks) == tasks


RAW = {"raw_rows": 10, "raw_fingerprint": "aa"}
ALL = {"rows": 10, "fingerprint": "aa"}
FEWER = {"rows": 9, "fingerprint": "bb"}  # without the last row of an episode that was cut


@pytest.mark.parametrize(
    ("others", "own", "tasks"),
    [
        (ALL | RAW, FEWER | RAW, {"Pendulum-v1, medium"}),
        (ALL | RAW, FEWER, {"Pendulum-v1, medium"}),
        (ALL, FEWER, {"Pendulum-v1, medium"}),
        (ALL, FEWER | RAW, {"Pendulum-v1, medium"}),
        (
            ALL,
            FEWER | {"raw_rows": 10, "raw_fingerprint": "cc"},
            {"Pendulum-v1, medium [aa]", "Pendulum-v1, medium [cc]"},
        ),
        (ALL, FEWER | {"rows": 11}, {"Pendulum-v1, medium [aa]", "Pendulum-v1, medium [bb]"}),
        (ALL, FEWER | {"rows": 4}, {"Pendulum-v1, medium [aa]", "Pendulum-v1, medium [bb]"}),
    ],
)
def test_rows_that_rebrac_omits_do_not_change_the_task(
    others: dict[str, Any], own: dict[str, Any], tasks: set[str], tmp_path: Path
) -> None:
    """Runs of 0.2 recorded the rows that were left, later ones the raw rows as well."""
    for algo, data in (("iql", others), ("td3_bc", others), ("rebrac", own)):
        write_run(tmp_path / algo, settings=settings_of(algo), dataset={"name": "/data/medium.npz", **data})
    assert set(report.read(tmp_path).summary.groups.tasks) == tasks


def test_old_runs_of_rebrac_on_two_files_are_two_tasks(tmp_path: Path) -> None:
    for number, mark in enumerate(("aa", "bb")):
        data = {"name": f"/{number}/medium.npz", "rows": 9, "fingerprint": mark}
        write_run(tmp_path / mark, seed=number, settings=settings_of("rebrac"), dataset=data)
    assert len(report.read(tmp_path).summary.groups.tasks) == 2


def test_a_table_has_the_number_of_rows_used(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings=settings_of("rebrac"), dataset={"name": "medium.npz", **FEWER, **RAW})
    assert "medium.npz (9 of 10 rows, fingerprint aa)" in report.read(tmp_path).tables["compared"].csv()


def test_weights_of_a_mixture_distinguish_methods(tmp_path: Path) -> None:
    """The rows of a mixture, and so its fingerprint, do not depend on its weights."""
    data = {"name": "a.npz + b.npz", **FEWER, **RAW}
    for seed, weight in ((0, 1.0), (1, 1.0), (0, 5.0), (1, 5.0)):
        parts = [{"dataset_path": "a.npz", "weight": 1.0}, {"dataset_path": f"{seed}/b.npz", "weight": weight}]
        name = f"{weight:g} {seed}"
        write_run(tmp_path / name, [weight], seed=seed, settings=settings_of("iql", datasets=parts), dataset=data)
    write_run(tmp_path / "strange", seed=2, settings=settings_of("iql", datasets=["a"]), dataset=data)
    results = report.read(tmp_path).summary.results
    same, more = ("iql (weights=[1.0, 1.0])", "iql (weights=[1.0, 5.0])")
    assert results[same, "Pendulum-v1, a + b"].values.tolist() == [1.0, 1.0]
    assert results[more, "Pendulum-v1, a + b"].values.tolist() == [5.0, 5.0]


def test_prior_data_with_the_same_name_distinguish_methods(tmp_path: Path) -> None:
    """The settings of a run have the name of its file without the folder."""
    for seed, (folder, mark) in enumerate([("medium", "aa"), ("other/medium", "aa"), ("expert", "bb")]):
        settings = settings_of("rlpd", buffer_capacity=9, dataset_path=f"{folder}/log.npz")
        data = {"name": f"{folder}/log.npz", **FEWER, "raw_rows": 10, "raw_fingerprint": mark}
        write_run(tmp_path / str(seed), [1.0 + seed], seed=seed, settings=settings, dataset=data)
    results = report.read(tmp_path).summary.results
    assert results["rlpd (data=aa)", "Pendulum-v1"].values.tolist() == [1.0, 2.0]
    assert results["rlpd (data=bb)", "Pendulum-v1"].values.tolist() == [3.0]
    assert report.read(tmp_path / "0", tmp_path / "1").summary.methods == ("rlpd",)


def test_data_are_called_by_their_files(tmp_path: Path) -> None:
    mixed = "/a/hopper-medium.npz + /a/b.c/hopper-expert.hdf5"
    assert data_name(mixed) == "hopper-medium + hopper-expert"
    assert data_name("mujoco/hopper/medium-v0") == "mujoco/hopper/medium-v0"
    minari = "/home/.minari/datasets/mujoco/hopper/{}-v0/data/main_data.hdf5"
    assert data_name(f"{minari.format('medium')} + {minari.format('expert')}") == "medium-v0 + expert-v0"
    assert data_name("random actions in Pendulum-v1") == "random actions in Pendulum-v1"
    # The same rows in the folders of two machines are one task, others in a file of the same name are another.
    for number, (name, mark) in enumerate([("/a/some.npz", "aa"), ("b/some.npz", "aa"), ("c/some.npz", "bb")]):
        data = {"name": name, "rows": 10, "fingerprint": mark, "in_memory": False}
        write_run(tmp_path / str(number), seed=number, settings=settings_of("iql"), dataset=data)
    assert report.read(tmp_path / "0", tmp_path / "1").summary.groups.tasks == ("Pendulum-v1, some",)
    assert len(report.read(tmp_path).summary.groups.tasks) == 2


def test_normalisation(tmp_path: Path) -> None:
    two_methods(tmp_path, ("Pendulum-v1", "Hopper-v5"))
    found = report.read(tmp_path)
    assert found.summary.scales["Hopper-v5"].low == -20.272305  # type: ignore[union-attr]
    given = report.read(tmp_path, normalize="range", references={"Pendulum-v1": (0.0, 200.0)}).summary
    assert given.scales["Pendulum-v1"].source == "given"  # type: ignore[union-attr]
    assert "lowest" in given.scales["Hopper-v5"].source  # type: ignore[union-attr]
    values = given.results["sac", "Pendulum-v1"].values / 200
    ours = given.scales["Hopper-v5"].score(given.results["sac", "Hopper-v5"].values)  # type: ignore[union-attr]
    assert given.overall["sac"].mean.value == pytest.approx((values.mean() + ours.mean()) / 2)
    for options, message in (
        ({"normalize": "d4rl"}, "Pendulum-v1 has no reference returns"),
        ({"normalize": "none"}, "normalize must be one of"),
        ({"references": {"Pendulum-v1": (1.0, 1.0)}}, "the lower first"),
    ):
        with pytest.raises(ConfigError, match=message):
            report.read(tmp_path, **options)  # type: ignore[arg-type]


def test_reference_returns_are_for_returns(tmp_path: Path) -> None:
    """The lengths of Hopper's episodes, 200 in every log, are not scored by its returns."""
    two_methods(tmp_path, ("HalfCheetah-v5", "Hopper-v5"))
    write_run(tmp_path / "other", settings=settings_of("sac", "Hopper-v5"), seed=9)
    log = tmp_path / "other" / "metrics.csv"
    log.write_text(log.read_text().replace(",200.0", ",100.0"))
    lengths = report.read(tmp_path, metric="eval_length_mean").summary
    assert lengths.scales["HalfCheetah-v5"] is None
    scale = lengths.scales["Hopper-v5"]
    assert scale is not None
    assert (scale.low, scale.high) == (100.0, 200.0)
    with pytest.raises(ConfigError, match="eval_length_mean is not a return"):
        report.read(tmp_path, metric="eval_length_mean", normalize="d4rl")
    for name in ("eval_return_mean", "eval/mean_reward"):
        scale = report.read(tmp_path, metric=name).summary.scales["Hopper-v5"]
        assert scale is not None
        assert (scale.low, scale.high) == (-20.272305, 3234.3)


def test_equal_results_have_no_scale_and_no_crash(tmp_path: Path, drawn: None) -> None:
    for seed in range(4):
        for algo in ("sac", "td3"):
            write_run(tmp_path / f"{algo}{seed}", [5.0, 5.0], seed=seed, settings=settings_of(algo))
    found = report.read(tmp_path)
    text = words(found)
    assert "every run has the same result" in text
    assert "No difference between any two methods: every" in text
    assert "Too few seeds" not in text


@pytest.mark.slow
def test_a_sweep_shows_each_setting(tmp_path: Path, drawn: None) -> None:
    for number, (rate, kind) in enumerate([(1e-4, "relu"), (1e-3, "relu"), (1e-2, "tanh"), (1e-3, "tanh")]):
        for seed in range(3):
            level = float(10 * -np.log10(rate) + seed)
            metrics = {"eval_return_mean": level, "eval_return_std": 1.0, "update_count": 10}
            settings = settings_of(learning_rate=rate, activation=kind)
            name = tmp_path / f"{number}-{seed}"
            write_run(name, curve_to(level), seed=seed, settings=settings, metrics=metrics)
    found = report.read(tmp_path)
    rows = found.tables["settings"].records()
    by_rate = {row["value"]: row["IQM"] for row in rows if row["setting"] == "learning_rate"}
    assert by_rate == pytest.approx({"0.0001": 41.0, "0.001": 31.0, "0.01": 21.0})
    assert [row["value"] for row in rows if row["setting"] == "activation"] == ["relu", "tanh"]
    assert {"setting-1", "setting-2"} <= set(found.figures)
    require_alone(found.html())


def test_too_many_methods_are_all_in_the_tables_and_the_best_are_drawn(tmp_path: Path) -> None:
    for number in range(12):
        for seed in range(2):
            settings = settings_of(gamma=number / 100)
            write_run(tmp_path / f"{number}-{seed}", curve_to(number + seed / 2), seed=seed, settings=settings)
    found = report.read(tmp_path)
    assert set(found.summary.shown["Pendulum-v1"]) == {f"sac (gamma={number / 100})" for number in range(4, 12)}
    assert len(found.tables["tasks"].rows) == 12
    assert "Of 12 methods the best 8 on each task are drawn" in words(found)


@pytest.mark.slow
def test_methods_that_share_no_task(tmp_path: Path) -> None:
    """Each task shows its own, without a warning."""
    for number in range(10):
        for seed in range(2):
            settings = settings_of(f"algo{number}", f"Task{number // 5}-v0")
            write_run(tmp_path / f"{number}-{seed}", curve_to(number + seed / 2), seed=seed, settings=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = report.read(tmp_path)
        text = words(found)
        for name in ("improvement-1", "task-1", "curve-steps-1"):
            found.figures[name].draw_without_rendering()
    assert "Over all tasks" not in text
    assert found.summary.shown["Task1-v0"] == tuple(f"algo{number}" for number in range(5, 10))
    assert {"improvement-1", "improvement-2", "task-1", "task-2"} <= set(found.figures)
    assert all(axes.lines for figure in found.figures.values() for axes in figure.axes)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(tmp_path: Path, with_pdf: None) -> None:
    folder = two_methods(tmp_path / "runs")
    pages = [report.read(folder).save(tmp_path / name / "report.html").read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]
    record = json.loads((tmp_path / "a" / "report.json").read_text(), parse_constant=pytest.fail)
    assert record["kind"] == "rl_training.report"
    assert len(record["runs"]) == 10
    assert record["pairs"][0]["better"] == "sac"
    with pytest.raises(ConfigError, match=r"a report is an \.html file"):
        report.read(folder).save(tmp_path / "report.txt")


def test_tables_in_every_language(tmp_path: Path) -> None:
    table = report.read(two_methods(tmp_path)).tables["tasks"]
    [first, *_] = table.records()
    assert first["IQM, last low"] < first["IQM, last"] < first["IQM, last high"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert float(rows[0]["IQM, last"]) == first["IQM, last"]
    assert table.markdown().splitlines()[1].startswith("|---|---|---:|")
    assert table.latex().startswith("\\begin{tabular}{llr")


def test_figures_are_matplotlibs(tmp_path: Path) -> None:
    found = report.read(two_methods(tmp_path))
    assert all(isinstance(figure, matplotlib.figure.Figure) for figure in found.figures.values())
    assert len(found.curves("updates").axes) == 1
    shown = Page(found._repr_html_())
    assert shown.tags == ["iframe"]
    [page] = [value for _, name, value in shown.attributes if name == "srcdoc"]
    assert page == found.html()
    assert ("iframe", "sandbox", "allow-downloads") in shown.attributes
    assert repr(found) == "Report(10 runs, 2 methods, 1 task)"


def test_records_of_version_0_1(tmp_path: Path) -> None:
    """No schema, no seconds, no host, an alias of a setting, a log without spreads."""
    for seed in range(2):
        folder = write_run(tmp_path / f"old{seed}", seed=seed)
        record = record_of(folder)
        for name in ("schema", "seconds", "updated"):
            del record[name]
        record["metrics"] = {"eval_return_mean": 2.0, "update_count": 10}
        (folder / "run.json").write_text(json.dumps(record))
        with (folder / "config.resolved.yaml").open("a") as file:
            file.write("env_processes: false\n")
        (folder / "metrics.csv").write_text(
            "step,time,eval/mean_reward\n10,1800000001.0,1.0\n10,1800000002.0,2.0\n"
        )
        write_run(tmp_path / f"new{seed}", [3.0], seed=seed + 2)
    found = report.read(tmp_path)
    assert found.summary.methods == ("sac",)
    assert sorted(found.summary.results["sac", "Pendulum-v1"].values) == [2.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("tasks", [("Pendulum-v1",), ("Pendulum-v1", "Hopper-v5", "Walker2d-v5")])
def test_long_names_fit_under_a_figure(tasks: tuple[str, ...], tmp_path: Path) -> None:
    long = "reward_range_scaling=True, policy_distribution=gaussian, expectile=0.7, beta=3"
    names = {"sac": f"sac ({long})", "td3": f"td3 ({long})"}
    summary = report.read(two_methods(tmp_path, tasks, seeds=2), names=names).summary
    for figure in (figures.all_curves(summary), figures.curves(summary, tasks[0])):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert "".join(text.get_text() for text in legend.get_texts()).count("beta=3") == 2
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
        assert 0 <= box.y0 < box.y1 < figure.axes[0].get_window_extent().y0


def test_results_of_another_program_are_a_method(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / "runs" / str(seed), (1.0, 2.0 + seed), seed=seed)
    rows = ["seed,step,value", *(f"{seed},{step},{seed + step / 100}" for seed in range(4) for step in (200, 100))]
    (tmp_path / "corl.csv").write_text("\n".join(rows), encoding="utf-8")
    found = report.read(tmp_path / "runs", external={"CORL": tmp_path / "corl.csv"})
    assert found.summary.methods == ("sac", "CORL")
    (task,) = found.summary.groups.tasks
    result = found.summary.results["CORL", task]
    assert (result.seeds, task) == (4, "Pendulum-v1")
    assert [run.last for run in found.summary.groups.cell("CORL", task).runs] == [2, 3, 4, 5]
    assert "CORL" in found.html()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,value\n1,2\n", r"x.csv: has no column 'seed'; needed: step, seed, value, maybe task$"),
        ("step,seed,value\n1,0,high\n", r"x.csv:2: could not convert string to float: 'high'$"),
        ("step,seed,value\n1,first,2\n", r"x.csv:2: seed must be a whole number, got 'first'$"),
        ("step,seed,value\n1,,2\n", r"x.csv:2: seed must be a whole number, got ''$"),
        ("step,seed,value\n1,0,nan\n", r"x.csv:2: step and value must be finite, got 1, nan$"),
        ("step,seed,value\n1,0\n", r"x.csv:2: must have 3 fields, as the first line$"),
        ("step,seed,value\n1,0,1,1\n", r"x.csv:2: must have 3 fields, as the first line$"),
        ("step,seed,value\n-5,0,1\n", r"x.csv:2: step must be >= 0, got -5$"),
        ("step,seed,value,task\n1,0,1,Pendulum\n", r"x.csv:2: task must be one of 'Pendulum-v1', got 'Pendulum'$"),
        ("step,seed,value\n1,0,1\n1,1,1\n1.0,0,2\n", r"x.csv:4: step 1.0 of seed 0 and Pendulum-v1 is given twi"),
        ("step,seed,value\n", r"x.csv: has no rows$"),
        (None, r"x.csv: No such file or directory$"),
    ],
)
def test_a_broken_file_of_another_program_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    if text is not None:
        (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        report.read(tmp_path / "run", external={"other": tmp_path / "x.csv"})


def test_results_of_another_program_are_never_pooled_with_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", seed=0)
    (tmp_path / "x.csv").write_text("step,seed,value\n1,7,1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x.csv: 'sac' names an algorithm of the runs; choose another name$"):
        report.read(tmp_path / "run", external={"sac": tmp_path / "x.csv"})


def test_a_seed_of_another_program_that_ends_early_gets_a_remark(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "x.csv").write_text("step,seed,value\n100,0,1\n95,1,1\n20,2,9\n", encoding="utf-8")
    found = report.read(tmp_path / "run", external={"other": tmp_path / "x.csv"}).summary.groups.troubles
    remark = "ends at step 20, others of this method at 100"
    assert [(one.reason, one.effect) for one in found if "x.csv" in one.place] == [(remark, "counted")]


def test_several_tasks_need_a_column(tmp_path: Path) -> None:
    for env_id in ("Pendulum-v1", "Hopper-v5"):
        write_run(tmp_path / "runs" / env_id, settings=settings_of(env_id=env_id), env_id=env_id)
    (tmp_path / "x.csv").write_text("step,seed,value\n1,0,1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^\S*x.csv: the runs have several tasks; add a column 'task'"):
        report.read(tmp_path / "runs", external={"other": tmp_path / "x.csv"})


def test_methods_with_many_settings_are_numbered_and_explained(tmp_path: Path) -> None:
    settings = {"policy_distribution": "gaussian", "reward_range_scaling": True, "learning_rate_schedule": "cosine"}
    write_run(tmp_path / "a", settings=settings_of(**settings))
    write_run(tmp_path / "b", settings=settings_of(**dict.fromkeys(settings, "other")))
    write_run(tmp_path / "c", settings=settings_of("td3"), algo="td3")
    found = report.read(tmp_path)
    assert found.summary.methods == ("sac 1", "sac 2", "td3")
    legend = found.summary.groups.legend
    assert list(legend) == ["sac 1", "sac 2"]
    assert legend["sac 1"].startswith("policy_distribution=gaussian, ")
    assert f"<li>sac 1: {legend['sac 1']}</li>" in found.html()


def test_a_metric_of_which_less_is_better_is_drawn_but_not_compared(tmp_path: Path) -> None:
    for place in range(10):
        home = write_run(tmp_path / str(place), [float(place)] * 2, settings=settings_of(gamma=0.9 + 0.01 * place))
        log = home / "metrics.csv"
        log.write_text(log.read_text().replace("eval/mean_reward", "validation/action_distance"))
    found = report.read(tmp_path, metric="validation_distance")
    assert found.summary.drawn == found.summary.methods[:8]
    found.curves()
    for use in (found.html, found.to_dict, lambda: found.tables, lambda: found.figures):
        with pytest.raises(ConfigError, match=r"^a report prefers the larger value, and less validation_distance"):
            use()


def test_a_method_is_not_better_because_it_has_more_seeds_on_an_easy_task(tmp_path: Path) -> None:
    for algo, seeds in (("sac", (12, 3)), ("td3", (3, 12))):
        for env_id, level, count in zip(("Easy-v0", "Hard-v0"), (1.0, 0.0), seeds):
            for seed, value in enumerate(level + np.linspace(-0.2, 0.2, count)):
                folder, settings = tmp_path / f"{algo}{env_id}{seed}", settings_of(algo, env_id)
                write_run(folder, [float(value)], seed=seed, settings=settings)
    given = {"Easy-v0": (0.0, 1.0), "Hard-v0": (0.0, 1.0)}
    summary = report.read(tmp_path, references=given).summary
    assert [one.iqm.value for one in summary.overall.values()] == pytest.approx([0.5, 0.5], abs=0.05)
    (pair,) = (pair for pair in summary.pairs if pair.task is None)
    assert (pair.enough, pair.better) == (True, None)
