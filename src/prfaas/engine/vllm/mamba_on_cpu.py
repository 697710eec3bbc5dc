"""Prefix caching of Mamba-2 on CPUs, which vLLM 0.32 cannot do by itself.

Its scheduler leaves a prompt's inner chunks uncut where a kernel can give the state at a block's end from inside of
them. The kernel for CPUs cannot, and the engine dies. So on CPUs the layers do not claim it: vLLM then cuts prefills
at the ends of blocks, as it does for other recurrent layers. On GPUs nothing is changed.
"""

from __future__ import annotations


def mend() -> None:
    """Harmless when done before, and where there is no CPU engine."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    if "get_kv_cache_spec" in vars(MambaMixer2):
        del MambaMixer2.get_kv_cache_spec  # the inherited one claims nothing
