"""The life of one KV transfer, on both sides, as state tables."""
