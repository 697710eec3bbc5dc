"""Model layouts from Hugging Face configs: what a model's KV cache is made of, without its weights."""
