"""What a model is to a server: its text. Imports `core` and `config` only."""
