"""Timing a live OpenAI endpoint, to make a profile of it."""
