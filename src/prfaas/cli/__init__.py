"""The programs. Each composes the other rooms; the only place that knows everything."""
