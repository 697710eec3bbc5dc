"""Before anything starts: whether the topology's engines can serve its model here.

It knows topologies and a child process; torch is only imported there. Models of the catalog are known to be good and
small: with them only accelerators are looked for.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

from prfaas.cli.progress import StepLine
from prfaas.config.reader import is_directory_name
from prfaas.config.topology import Topology, TransformersEngine
from prfaas.core.errors import ConfigError
from prfaas.model.text import Text
from prfaas.model.watched import watched

CHECKER = "prfaas.engine.transformers.check"
NO_DEVICE = 3
"""The checker's exit code when an accelerator is missing or too small."""


def check_model(topology: Topology, directory: Path) -> None:
    """Raises ConfigError, one line: broken, too big for this machine, of a family that cannot be served, or a device
    that is not here."""
    given = is_directory_name(topology.model)
    if given:
        Text.load(directory).close()
    engines = [
        (("clusters", name, "nodes", at, "engine", "device"), node.engine.dtype, node.engine.device)
        for name, cluster in topology.clusters.items()
        for at, node in enumerate(cluster.nodes)
        if isinstance(node.engine, TransformersEngine) and (given or node.engine.device != "cpu")
    ]
    if not engines:
        return
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(f"model {topology.model} needs transformers; expected `pip install prfaas[transformers]`")
    step = StepLine(sys.stderr)
    command = [sys.executable, "-P", "-m", CHECKER, "--until-eof", str(directory)]
    command += [f"{dtype}:{device}" for _, dtype, device in engines]
    try:
        with tempfile.TemporaryDirectory(prefix="prfaas-check-") as scratch:
            code, lines = watched(command, Path(scratch) / "log", f"checking {topology.public_name}", step)
    finally:
        step.done()
    if code:
        said = lines[-1] if lines else f"checking {directory} failed with exit code {code}"
        asked = [where for where, _, device in engines if device != "cpu"]
        raise ConfigError(said, asked[0] if code == NO_DEVICE else ("model",))
