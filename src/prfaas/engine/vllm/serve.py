"""`vllm serve`, ended when its parent is gone. Run by `prfaas node` in the environment that has vLLM.

It knows the lifeline and vLLM's entry point; what is served is on the command line. vLLM's engine and workers are
processes of their own, which outlive a server that was killed: they load `register` as a plugin, and end with it.
"""

from __future__ import annotations

import os
import sys

from prfaas.runtime import lifeline

CONNECTOR = "PrfaasConnector"
SERVER = "PRFAAS_VLLM_SERVER"
"""The variable that has the process id of the server, for the processes that it starts."""


def register() -> None:
    """vLLM's plugin, called in each of its processes: our connector is known by name (MultiConnector looks it up so),
    prefixes of Mamba-2 are kept on CPUs too, and processes that a server of ours started end with their parent."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from prfaas.engine.vllm.mamba_on_cpu import mend

    if CONNECTOR not in KVConnectorFactory._registry:  # vLLM calls plugins more than once
        KVConnectorFactory.register_connector(CONNECTOR, "prfaas.engine.vllm.connector", CONNECTOR)
    if os.environ.get(SERVER, str(os.getpid())) != str(os.getpid()):
        lifeline.end_with_parent()
    mend()


def main() -> None:
    """Everything on the command line is `vllm serve`'s."""
    lifeline.watch(os.environ)
    os.environ[SERVER] = str(os.getpid())
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    vllm()


if __name__ == "__main__":
    main()
