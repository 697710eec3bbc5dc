"""Moving KV between nodes: one Protocol (`base`), TCP and in-memory behind it."""
