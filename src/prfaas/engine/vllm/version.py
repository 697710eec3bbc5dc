"""Which vLLM this connector was written for."""

from __future__ import annotations

from prfaas.core.errors import ConfigError

SUPPORTED = (0, 32)
"""Major and minor. The connector API is experimental: other versions are refused rather than tried."""


def require_supported(version: str) -> None:
    """Raises ConfigError unless `version`, as vLLM says it, is one of the supported ones."""
    numbers = version.split("+")[0].split(".")
    try:
        found = (int(numbers[0]), int(numbers[1]))
    except (IndexError, ValueError):
        found = None
    if found != SUPPORTED:
        wanted = ".".join(map(str, SUPPORTED))
        raise ConfigError(f"vLLM {version} is not supported by this PrfaasConnector; expected {wanted}.x")
