"""What comes from the environment: secrets and the log's settings.

    PRFAAS_SECRET      shared by all programs of a topology: they sign tickets and calls with it; 32 characters or more
    PRFAAS_API_KEYS    keys that clients show to a gateway, separated by commas; only gateways read them
    PRFAAS_LOG_LEVEL, PRFAAS_LOG_FORMAT   instead of the file's `log`

(The names of the first two can be changed in the file's `security`.) It knows where secrets are and when they must be
there; it does not know what is signed with them. A secret is never printed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args, get_type_hints

from msgspec.structs import replace

from prfaas.config.checks import listeners
from prfaas.config.topology import Cluster, Log, Topology
from prfaas.core.errors import ConfigError

LEAST_SECRET = 32
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Environment:
    """`secret` is shared by the programs; a client must show one of `api_keys`, unless there are none. Programs that
    are no gateway have none."""

    secret: str = field(repr=False)
    api_keys: tuple[str, ...] = field(repr=False)
    log: Log


def read_environment(
    topology: Topology, environ: Mapping[str, str], *, alone: bool = False, gateway: str = ""
) -> Environment:
    """The secrets and log settings for `topology`. Raises ConfigError when one is missing or too weak.

    `alone`: this program starts all the others (`prfaas up`), so that a missing secret is made, if all is on loopback.
    `gateway`: the cluster whose gateway this program is. Clients' keys need not be where no gateway is.
    """
    security = topology.security
    return Environment(
        secret=_secret(topology, _value(security.secret_file, security.secret_env, environ).strip(), alone),
        api_keys=_api_keys(topology, environ, set(topology.of_kind("pd")) if alone else {gateway}),
        log=_log(topology.log, environ),
    )


def _secret(topology: Topology, secret: str, alone: bool) -> str:
    exposed = [(where, at) for where, at, _ in listeners(topology) if not at.loopback]
    if not secret and alone and not exposed:
        return secrets.token_urlsafe(LEAST_SECRET)
    if not secret:
        because = f", and {exposed[0][1]} is not on loopback" if exposed else ""
        expected = f"expected ${topology.security.secret_env}, or security.secret_file in the topology file"
        raise ConfigError(f"there is no secret{because}; {expected}", exposed[0][0] if exposed else ())
    if len(secret) < LEAST_SECRET:
        raise ConfigError(f"the secret has {len(secret)} characters; expected {LEAST_SECRET} or more, chosen at random")
    return secret


def _api_keys(topology: Topology, environ: Mapping[str, str], gateways: set[str]) -> tuple[str, ...]:
    here = {name: cluster for name, cluster in topology.of_kind("pd").items() if name in gateways}
    if not here:
        return ()
    security = topology.security
    text = _value(security.api_keys_file, security.api_keys_env, environ)
    keys = tuple(key.strip() for key in text.replace("\n", ",").split(",") if key.strip())
    for name, cluster in here.items():
        if wants_keys(cluster) and not keys:
            expected = f"expected ${security.api_keys_env}, or security.api_keys_file in the topology file"
            because = f"the gateway's {cluster.listen} is not on loopback"
            raise ConfigError(f"there are no API keys, and {because}; {expected}", ("clusters", name, "listen"))
    return keys


def wants_keys(cluster: Cluster) -> bool:
    """Whether the gateway of a pd `cluster` does not start without API keys."""
    return cluster.listen is not None and not cluster.listen.loopback


def _value(file: str | None, variable: str, environ: Mapping[str, str]) -> str:
    if file is None:
        return environ.get(variable, "")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(_MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{file}: cannot be read: {reason}") from None


def _log(log: Log, environ: Mapping[str, str]) -> Log:
    for key in ("level", "format"):
        if value := environ.get(f"PRFAAS_LOG_{key.upper()}"):
            allowed = get_args(get_type_hints(Log)[key])
            if value not in allowed:
                raise ConfigError(f"$PRFAAS_LOG_{key.upper()} is {value!r}; expected one of {', '.join(allowed)}")
            log = replace(log, **{key: value})
    return log
