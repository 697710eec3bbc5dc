"""Pure decisions: events and `now` in, effects out. Standard library only; no clock, IO, chance or logging."""
