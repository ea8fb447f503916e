"""Reports: what run folders say, with honest statistics, as one page that needs no network.

reading      run folders, studies and packed studies; `logs` is what is kept of metrics.csv
listing      runs by algorithm, environment, tag and status, sorted
"""

from rl_training.report.listing import runs

__all__ = ["runs"]
