"""Reports: what run folders say, with honest statistics, as one page that needs no network.

reading      run folders, studies and packed studies; `logs` is what is kept of metrics.csv
"""
