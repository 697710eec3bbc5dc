"""Flags of `vllm serve` that `engine.arguments` may not have: prfaas gives them itself, and what they would change is a
setting of the topology file that other programs go by too.

It knows vLLM 0.32's flags by name, and how its parser reads them; it does not know what they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

INSTEAD = {
    "--api-key": "the secret, which is the key already",
    "--block-size": "`engine.block_tokens`",
    "--dtype": "`engine.dtype`",
    "--host": "the node's `listen`",
    "--kv-cache-memory-bytes": "`engine.kv_memory`",
    "--kv-events-config": "the cluster's `events_listen`",
    "--kv-transfer-config": "`engine.connector` and `engine.inside`",
    "--max-model-len": "`limits.max_model_len`",
    "--max-num-batched-tokens": "`engine.chunk_tokens`",
    "--max-num-seqs": "`engine.max_sequences`",
    "--model": "the file's `model`",
    "--port": "the node's `listen`",
    "--served-model-name": "the file's `served_name`",
    # Doors that are not asked at, or where nobody is asked for the secret.
    "--grpc": "HTTP, which the heads speak",
    "--grpc-port": "HTTP, which the heads speak",
    "--headless": "a server of its own for each node",
    "--ssl-certfile": "plain HTTP, which the heads speak",
    "--ssl-keyfile": "plain HTTP, which the heads speak",
    "--uds": "the node's `listen`",
}
"""Flag -> what is expected instead."""


def taken(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Which of `arguments` are such flags, however they are written: their place, and `what is wrong; expected ...`."""
    for at, word in enumerate(arguments):
        # `--flag=value`, `--flag.key value`, and underscores for hyphens.
        name = word.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
        if not word.startswith("--") or len(name) < 4:
            continue
        # vLLM takes the beginning of a name for the name.
        flag = name if name in INSTEAD else next((flag for flag in INSTEAD if flag.startswith(name)), None)
        if flag is not None:
            yield at, f"{name} is not for `arguments`; expected {INSTEAD[flag]}"
