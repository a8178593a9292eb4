"""The budgets, measured: ratios against a reference in the same run, CPU seconds instead of wall time.

``make bench`` prints a table; ``--record`` also adds it to RESULTS.md with date and commit.
"""
