"""An engine without a model: time from a profile, KV and tokens derived from the prompt, faults on demand."""
