"""What would end `vllm serve` once the model is loaded, found before: minutes are saved, and one line says what it is.

It knows the few flags that say where a server listens, and our connector's settings; it does not know vLLM.
"""

from __future__ import annotations

import argparse
import errno
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.engine.vllm.guard import secret_of
from prfaas.engine.vllm.settings import read_settings

FREE_WITHIN_S = 5.0
"""A predecessor's workers, which end with it, may hold their ports so long."""
RUST = "VLLM_USE_RUST_FRONTEND"


def check_before(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    within_s: float = FREE_WITHIN_S,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Raises ConfigError when the server of these `arguments` of `vllm serve` has no secret, settings that our
    connector refuses, or an address that is taken `within_s` from now."""
    secret_of(environ)
    if environ.get(RUST, "0") not in ("", "0"):
        raise ConfigError(
            f"${RUST} is set; expected it unset, since that server does not ask for the secret everywhere"
        )
    give_up = time.monotonic() + within_s
    for what, endpoint in listeners(arguments, environ):
        while error := _taken(endpoint):
            if error.errno != errno.EADDRINUSE or time.monotonic() >= give_up:
                raise ConfigError(f"cannot listen on {endpoint} ({what}): {error.strerror}; expected a free address")
            rest(0.2)


def listeners(arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[tuple[str, Endpoint]]:
    """Where that server will listen: what for, and the address. Raises ConfigError."""
    said = _flags(arguments)
    yield "vLLM's `listen`", Endpoint.at(said.host or "0.0.0.0", said.port)
    replay = said.kv_events_config.get("replay_endpoint") if isinstance(said.kv_events_config, dict) else None
    if isinstance(replay, str) and replay.startswith("tcp://"):
        yield "`replay_listen`", Endpoint(replay.removeprefix("tcp://"))
    for config in _connectors(said.kv_transfer_config):
        if config.get("kv_connector") == "PrfaasConnector":
            settings = read_settings(config.get("kv_connector_extra_config", {}), environ)
            yield "`control_listen`", settings.control
            for rank in range(said.tensor_parallel_size):
                of = f", rank {rank}" if rank else ""
                yield f"`data_listen`{of}", Endpoint.at(settings.data.host, settings.data.port + rank)
        elif config.get("kv_connector") == "NixlConnector" and "VLLM_NIXL_SIDE_CHANNEL_PORT" in environ:
            host = environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
            yield "`nixl_listen`", Endpoint.at(host, int(environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]))


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("vllm serve", add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--kv-transfer-config", type=json.loads, default={})
    parser.add_argument("--kv-events-config", type=json.loads, default={})
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    # vLLM takes underscores for hyphens.
    named = [word.split("=", 1) if word.startswith("--") else [word] for word in arguments]
    plain = ["=".join([name.replace("_", "-") if name.startswith("--") else name, *rest]) for name, *rest in named]
    return parser.parse_known_args(plain)[0]


def _connectors(config: Any) -> list[dict[str, Any]]:
    if not isinstance(config, dict):
        return []
    if config.get("kv_connector") == "MultiConnector":
        return list(config.get("kv_connector_extra_config", {}).get("connectors", []))
    return [config]


def _taken(endpoint: Endpoint) -> OSError | None:
    """Why nothing can listen there; None when it can."""
    try:
        family = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((endpoint.host, endpoint.port))
            sock.listen(1)
    except socket.gaierror as error:
        return OSError(None, f"{endpoint.host} has no address here ({error.strerror})")
    except OSError as error:
        return error
    return None
