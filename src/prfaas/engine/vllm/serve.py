"""`vllm serve`, ended when its parent is gone. Run by `prfaas node` in the environment that has vLLM.

It knows the lifeline and vLLM's entry point; what is served is on the command line.
"""

from __future__ import annotations

import os
import sys

from prfaas.runtime import lifeline


def main() -> None:
    """Everything on the command line is `vllm serve`'s."""
    lifeline.watch(os.environ)
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    vllm()


if __name__ == "__main__":
    main()
