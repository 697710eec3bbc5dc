"""Whether a checkpoint can be served, before anything is started: headers are read, no weights.

    python -m prfaas.engine.transformers.check DIRECTORY DTYPE:DEVICE ...

One DTYPE:DEVICE for each engine that is to run here. Says why not in one line, with exit code 2; or 3, when it is an
accelerator that is missing or too small. It knows files, memory
and what transformers makes of them; it does not know topologies. What only a run can tell (the trial hand-over) the
engine finds out when it starts.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from prfaas.core.errors import ConfigError
from prfaas.engine.transformers.checkpoint import Checkpoint, free_host_bytes, open_checkpoint

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def check(directory: Path, engines: Sequence[tuple[str, str]]) -> None:
    """`engines`: (dtype, device) of each. Raises ConfigError: broken, unknown, not movable, too big."""
    checkpoint = open_checkpoint(directory)
    _require_host_memory(checkpoint, [dtype for dtype, device in engines if device == "cpu"], free_host_bytes())
    from prfaas.engine.transformers.layout import dtype_named  # torch: only for what is whole and fits
    from prfaas.engine.transformers.loaded import quiet, read_config, read_model

    quiet()
    config = read_config(checkpoint)
    for dtype in sorted({dtype for dtype, _ in engines}):
        read_model(checkpoint, config, dtype_named(dtype), device_map="meta")


def check_devices(directory: Path, engines: Sequence[tuple[str, str]]) -> None:
    """Raises ConfigError: an accelerator that is missing or too small."""
    _require_device_memory(open_checkpoint(directory), [engine for engine in engines if engine[1] != "cpu"])


def host_bytes(checkpoint: Checkpoint, dtypes: Sequence[str]) -> int:
    """Memory for the weights of one engine for each of `dtypes`. Those that compute in the dtype of the files map them,
    and share one copy; each other one makes a copy of its own."""
    mapped = [dtype for dtype in dtypes if checkpoint.dtypes == {STORED[dtype]}]
    own = [dtype for dtype in dtypes if dtype not in mapped]
    return checkpoint.weights * (
        sum(BYTES[dtype] for dtype in own) + max((BYTES[dtype] for dtype in mapped), default=0)
    )


def _require_host_memory(checkpoint: Checkpoint, dtypes: Sequence[str], free_bytes: int) -> None:
    needed_bytes = host_bytes(checkpoint, dtypes)
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"{checkpoint.directory}: its weights take {needed_bytes / 2**30:.2f} GiB in {len(dtypes)} engines, only"
            f" {free_bytes / 2**30:.2f} GiB of host memory is free"
        )


def _require_device_memory(checkpoint: Checkpoint, engines: Sequence[tuple[str, str]]) -> None:
    import torch

    needed: Counter[str] = Counter()
    for dtype, device in engines:
        needed[device] += checkpoint.weights * BYTES[dtype]
    for device, needed_bytes in sorted(needed.items()):
        if not torch.cuda.is_available():
            raise ConfigError(f"device {device!r}: no CUDA device here")
        free_bytes = int(torch.cuda.mem_get_info(device)[0])
        if needed_bytes > free_bytes:
            raise ConfigError(
                f"{checkpoint.directory}: its weights take {needed_bytes / 2**30:.2f} GiB, only"
                f" {free_bytes / 2**30:.2f} GiB of {device} memory is free"
            )


def main() -> None:
    """The command. `--until-eof`: end at once when standard input ends, which is when the parent does."""
    parser = argparse.ArgumentParser(prog="check", description="Say whether a checkpoint can be served.")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    parser.add_argument("directory", type=Path)
    parser.add_argument("engines", nargs="+", metavar="DTYPE:DEVICE")
    options = parser.parse_args()
    if options.until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    os.environ["HF_HUB_OFFLINE"] = "1"
    engines = [(dtype, device) for dtype, _, device in (engine.partition(":") for engine in options.engines)]
    try:
        check(options.directory, engines)
    except ConfigError as error:
        print(error, flush=True)
        sys.exit(2)
    try:
        check_devices(options.directory, engines)
    except ConfigError as error:
        print(error, flush=True)
        sys.exit(3)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
