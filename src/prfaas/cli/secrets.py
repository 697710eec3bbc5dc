"""The environment's secrets for one program, with the file's line when they are missing because of what it says."""

from __future__ import annotations

import os
from pathlib import Path

from prfaas.config.document import read_document
from prfaas.config.environment import Environment, read_environment
from prfaas.config.topology import Topology
from prfaas.core.errors import ConfigError


def environment_of(topology: Topology, file: Path, gateway: str = "") -> Environment:
    """Those for `topology`, which was read from `file`; of the gateway of cluster `gateway`, if this is one. Raises
    ConfigError."""
    try:
        return read_environment(topology, os.environ, gateway=gateway)
    except ConfigError as error:
        raise read_document(file).located(error) from None
