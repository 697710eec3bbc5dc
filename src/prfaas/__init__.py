"""Prefill-as-a-Service: long prompts prefilled in one datacenter, decoded in another, the KV cache carried over TCP."""

__version__ = "0.1.0"
