"""Which request goes where, now: threshold, placement, the cluster's queue, the router's machine."""
