"""Messages and frames: bytes <-> values, with versions. No sockets."""
