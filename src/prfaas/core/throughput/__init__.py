"""The throughput model: the paper's equations, from plain numbers. What planner, threshold and balance share.

Times here are means over many requests, so they are floats, in seconds; rates are requests a second, sizes bytes, line
rates bits a second. `equations` is the paper; `site` what there is; `split` what a threshold makes of it; `search`
finds the best threshold and whole nodes; `spread` and `packing` find the best use of several PrfaaS clusters.
"""
