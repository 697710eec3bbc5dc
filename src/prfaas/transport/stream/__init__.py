"""KV transfers over ordered byte streams: everything but where the streams come from (sockets, or memory)."""
