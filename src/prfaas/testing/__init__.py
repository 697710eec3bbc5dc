"""The kit that ships: virtual time, scenarios, conformance suites, generated tables. For users' tests as well as
ours."""
