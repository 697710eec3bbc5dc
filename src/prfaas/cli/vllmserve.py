"""From a node's settings to `vllm serve`: the command line and the environment.

It knows vLLM's flags; it does not import vLLM, which lives in an environment of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prfaas.cli.caches import events_dial
from prfaas.config.environment import Environment
from prfaas.config.topology import Cluster, Node, Topology, VllmEngine
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName

PYTHON_VARIABLE = "PRFAAS_VLLM_PYTHON"
SERVE = "prfaas.engine.vllm.serve"
QUIET = "/health,/metrics"
"""Paths that heads ask twice a second: not in the access log."""
PROBE = "import importlib.util as u; print([m for m in ('vllm', 'prfaas') if u.find_spec(m) is None])"
"""Says which are missing, without the seconds that importing them takes."""
PROBE_S = 60.0
CONNECTOR = {
    "kv_connector": "PrfaasConnector",
    "kv_connector_module_path": "prfaas.engine.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "fail",
}


def vllm_python(engine: VllmEngine, environ: Mapping[str, str]) -> str:
    """The interpreter that has vLLM. Raises ConfigError when there is none."""
    python = engine.python or environ.get(PYTHON_VARIABLE)
    if python is None:
        if importlib.util.find_spec("vllm") is not None:
            return sys.executable
        said = f"expected one in `engine.python` or ${PYTHON_VARIABLE} (`make setup-vllm` makes one for CPUs)"
        raise ConfigError(f"this Python has no vLLM; {said}")
    path = Path(python).expanduser()
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{python} cannot be run; expected a Python interpreter that has vLLM")
    return str(path.absolute())


def check_vllm(topology: Topology, environ: Mapping[str, str]) -> None:
    """Raises ConfigError when a node of kind vllm has no vLLM here."""
    engines = [node.engine for _, node in topology.nodes() if isinstance(node.engine, VllmEngine)]
    for python in {vllm_python(engine, environ): None for engine in engines}:
        check_interpreter(python)


def check_interpreter(python: str) -> None:
    """Raises ConfigError unless `python` is a Python that can import vLLM and prfaas."""
    expected = "expected a Python interpreter that has vLLM"
    try:
        asked = subprocess.run(
            [python, "-P", "-c", PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        raise ConfigError(f"{python} does not run as a Python does; {expected}") from None
    said = asked.stdout.strip()
    if asked.returncode or not (said.startswith("[") and said.endswith("]")):
        raise ConfigError(f"{python} is no Python of 3.11 or later; {expected}")
    if "vllm" in said:
        raise ConfigError(f"{python} has no vllm; {expected} (`make setup-vllm` makes one for CPUs)")
    if said != "[]":
        raise ConfigError(
            f"{python} has vllm, but no prfaas; expected both: `{python} -m pip install --no-deps prfaas`"
        )


def vllm_command(
    topology: Topology, file: Path, cluster: ClusterName, node: Node, directory: Path, environ: Mapping[str, str]
) -> list[str]:
    """The command line of a node of kind vllm. Raises ConfigError when it cannot be made."""
    engine = node.engine
    assert isinstance(engine, VllmEngine)
    if node.listen is None:
        raise ConfigError(f"node {node.name} has no `listen`; expected HOST:PORT (only `prfaas up` picks ports)")
    flags: dict[str, Any] = {
        "--served-model-name": topology.public_name,
        "--host": node.listen.host,
        "--port": node.listen.port,
        "--max-model-len": topology.limits.max_model_len,
        "--max-num-seqs": engine.max_sequences,
        "--dtype": engine.dtype,
        "--block-size": engine.block_tokens,
        "--max-num-batched-tokens": engine.chunk_tokens,
        "--kv-cache-memory-bytes": engine.kv_memory_bytes,
        "--kv-events-config": _kv_events(topology.clusters[cluster], node),
        "--disable-access-log-for-endpoints": QUIET,
        "--kv-transfer-config": json.dumps(kv_transfer_config(engine, file, cluster, node)),
    }
    command = [vllm_python(engine, environ), "-P", "-m", SERVE, str(directory)]
    for flag, value in flags.items():
        if value is not None:
            command += [flag, str(value)]
    if engine.device == "cpu":
        command.append("--enforce-eager")
    return [*command, *engine.arguments]


def _kv_events(cluster: Cluster, node: Node) -> str | None:
    """`--kv-events-config`: to the head, which tells nodes apart by topic. (With a host, vLLM's publisher dials.) What
    was missed is had again at the node, where it listens for that."""
    endpoint, replay = events_dial(cluster), node.replay_listen
    if endpoint is None:
        return None
    said = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://{endpoint}", "topic": node.name}
    if replay is not None:
        said |= {"replay_endpoint": f"tcp://{replay}"}
    return json.dumps(said)


def kv_transfer_config(engine: VllmEngine, file: Path, cluster: ClusterName, node: Node) -> dict[str, Any]:
    """`--kv-transfer-config`: our connector, NixlConnector, or both, ours asked first."""
    configs: list[dict[str, Any]] = []
    for name in engine.connectors:
        if name == "prfaas":
            extra = {"topology": str(file.absolute()), "cluster": cluster, "node": node.name}
            configs.append({**CONNECTOR, "kv_connector_extra_config": extra})
        else:
            buffer = {"kv_buffer_device": "cpu"} if engine.device == "cpu" else {}
            configs.append({"kv_connector": "NixlConnector", "kv_role": "kv_both", **buffer})
    if len(configs) == 1:
        return configs[0]
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"connectors": configs},
    }


def vllm_environment(node: Node, environment: Environment, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of that process: ours, and what vLLM takes from there alone."""
    engine = node.engine
    assert isinstance(engine, VllmEngine)
    made = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if engine.device == "cpu" and engine.cores is not None:
        made["VLLM_CPU_OMP_THREADS_BIND"] = engine.cores
    if "nixl" in engine.connectors and node.nixl_listen is not None:
        made |= {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": node.advertise or node.nixl_listen.host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(node.nixl_listen.port),
        }
        if engine.device == "cpu":
            made |= {"UCX_TLS": "tcp"} | ({"UCX_NET_DEVICES": "lo"} if node.nixl_listen.loopback else {})
    # What the user sets stands, but nodes are internal: all but health and metrics demand the secret.
    return made | dict(environ) | {"VLLM_API_KEY": environment.secret}
