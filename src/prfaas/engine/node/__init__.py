"""A node: one engine behind the node protocol (`wire.control`). `server` wires; the other files have one noun each."""
