"""The slow decisions, minutes apart: how many nodes prefill and how many decode, and the threshold that goes with it.

`measured` keeps what was seen lately (`window`, `smooth`), `hardware` says what work costs, `outlook` joins the two by
the planner's own equations (`core/throughput`). `rules` and `rivals` judge, `balancer` acts and waits, `tuner` moves
the threshold.
"""
