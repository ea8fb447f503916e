"""Reports: what run folders say, with honest statistics, as one page that needs no network.

    from rl_training import report

    found = report.read("studies/compare", "runs")
    found.save("report.html")               # and report.json beside it
    found.tables["tasks"].records()
    found.curves(axis="updates")            # a matplotlib figure

reading      run folders, studies and packed studies; `logs` is what is kept of metrics.csv
listing      runs by algorithm, environment, tag and status, sorted
grouping     which runs are a method on a task, and which count; `facts` is what else is to be said of them
statistics   robust means, intervals, comparisons; `curves`, `sweeps` and `normalising` use it
summary      everything a report says, as data
tables       and `figures` of it, `rendering` as bytes, `page` as HTML
report       `read` and `Report`, which need the extra `report`; reading does not
"""

from typing import TYPE_CHECKING

__all__ = ["Report", "read", "runs"]

if TYPE_CHECKING:
    from rl_training.report.listing import runs
    from rl_training.report.report import Report, read
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "runs":
            from rl_training.report.listing import runs

            return runs
        from rl_training.errors import MissingDependencyError

        try:
            from rl_training.report import report
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("rl_training"):
                raise
            remedy = "pip install 'rl-training[report]'"
            raise MissingDependencyError(f"reports need matplotlib, scipy and jinja2 ({error}); {remedy}") from None
        return getattr(report, name)
