"""The same task for each contender: a module each, with the same functions.

`rounds` and `deltas` run on a model in memory, `http_rounds` and `http_deltas` on `benchmarks.server`. Every agent is
made once, before anything is measured, and used as its documentation says; what is not needed (tracing, limits of
the peers) is off.
"""
