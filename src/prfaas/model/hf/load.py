"""The KV layout of a model, by its config.json or its name."""

from __future__ import annotations

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError


def load_layout(source: str, kv_dtype: str | None = None) -> KVLayout:
    """The layout of `source`: a config.json, a directory that has one, or a known name. Raises ConfigError."""
    raise ConfigError(f"model {source!r}: expected one of {', '.join(known_models())}")


def known_models() -> tuple[str, ...]:
    """Names that `load_layout` takes."""
    return ()
