"""Reports: compare runs on one self-contained page, with confidence intervals.

    from rl_training import report

    found = report.read("studies/compare", "runs")
    found.save("report.html")               # and report.json next to it
    found.tables["tasks"].records()
    found.curves(axis="updates")            # a matplotlib figure

reading      read run folders, studies and packed studies; `logs` reads metrics.csv
listing      filter and sort runs
grouping     group runs by method and task (`tasks`), and select the runs that count; `facts` describes them
statistics   robust means, intervals, comparisons; used by `curves`, `sweeps` and `normalising`
summary      the contents of a report, as data
tables       the summary as tables; `figures` as figures, `rendering` to bytes, `page` as HTML
report       `read` and `Report`; they need the extra `report`, reading does not
"""

from typing import TYPE_CHECKING

from rl_training.errors import MissingDependencyError
from rl_training.lazy import lazy

__all__ = ["Report", "read", "runs"]

if TYPE_CHECKING:
    from rl_training.report.listing import runs
    from rl_training.report.report import Report, read
else:
    _modules = dict.fromkeys(__all__, "rl_training.report.report") | {"runs": "rl_training.report.listing"}
    _attribute, __dir__ = lazy(__name__, _modules)

    def __getattr__(name):
        try:
            return _attribute(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("rl_training"):
                raise
            remedy = "pip install matplotlib scipy jinja2"
            raise MissingDependencyError(f"reports need matplotlib, scipy and jinja2 ({error}); {remedy}") from None
