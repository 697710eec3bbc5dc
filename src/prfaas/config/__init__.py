"""The topology file and the environment, as small frozen parameters."""
