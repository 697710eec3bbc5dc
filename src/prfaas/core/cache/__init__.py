"""What a KV cache is made of, and who holds it."""
