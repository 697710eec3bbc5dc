"""Engines: what computes. One Protocol (`base`), one node server in front of it, several kinds behind it."""
