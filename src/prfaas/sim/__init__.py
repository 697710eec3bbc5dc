"""The simulator: queues, bursts, faults and a moving link around the decisions of `core`, in virtual time."""
