"""`vllm serve` behind our guard, ended when its parent is gone. Run by `prfaas node` in the environment that has vLLM.

It knows the lifeline and vLLM's entry point; what is served is on the command line. vLLM's engine and workers are
processes of their own, which outlive a server that was killed: they load `register` as a plugin, and end with it.
"""

from __future__ import annotations

import logging
import os
import sys

import structlog

from prfaas.core.errors import LocalError
from prfaas.engine.vllm.before import check_before
from prfaas.engine.vllm.guard import MIDDLEWARE
from prfaas.runtime import lifeline

CONNECTOR = "PrfaasConnector"
SERVER = "PRFAAS_VLLM_SERVER"
"""The variable that has the process id of the server, for the processes that it starts."""


def register() -> None:
    """vLLM's plugin, called in each of its processes: our connector is known by name (MultiConnector looks it up so),
    prefixes of Mamba-2 are kept on CPUs too, what we log looks as what vLLM logs, and processes that a server of ours
    started end with their parent."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from prfaas.engine.vllm.mamba_on_cpu import mend

    if CONNECTOR not in KVConnectorFactory._registry:  # vLLM calls plugins more than once
        KVConnectorFactory.register_connector(CONNECTOR, "prfaas.engine.vllm.connector", CONNECTOR)
    if os.environ.get(SERVER, str(os.getpid())) != str(os.getpid()):
        lifeline.end_with_parent()
    log_as(logging.getLogger("vllm"))
    mend()


def log_as(theirs: logging.Logger) -> None:
    """Give our loggers the handlers and the level of `theirs`: without any, Python shows bare warnings only."""
    ours = logging.getLogger("prfaas")
    ours.handlers[:] = theirs.handlers
    ours.setLevel(theirs.level)
    ours.propagate = theirs.propagate
    if not structlog.is_configured():  # of the rooms that we share with programs that set it up
        plain = structlog.dev.ConsoleRenderer(
            colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
        structlog.configure(
            [structlog.contextvars.merge_contextvars, structlog.stdlib.filter_by_level, plain],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def main() -> None:
    """Everything on the command line is `vllm serve`'s. Exit code 2, and one line, for what `before` finds."""
    lifeline.watch(os.environ)
    os.environ[SERVER] = str(os.getpid())
    try:
        check_before(sys.argv[1:], os.environ)
    except LocalError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    from vllm.entrypoints.cli.main import main as vllm

    # Last, so that it is around all others and nothing takes it away again.
    sys.argv = ["vllm", "serve", *sys.argv[1:], "--middleware", MIDDLEWARE]
    vllm()


if __name__ == "__main__":
    main()
