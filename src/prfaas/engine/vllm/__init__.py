"""Nodes of vLLM: our KV connector, and the program that is served."""
