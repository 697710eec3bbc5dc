"""Who belongs to a cluster now: nodes that the topology lists, nodes that join for an hour, how each comes and goes."""
