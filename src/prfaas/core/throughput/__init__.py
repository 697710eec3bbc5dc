"""The throughput model: the paper's equations, from plain numbers. What planner, threshold and balance share."""
