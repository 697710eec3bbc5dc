"""A GGUF file, or the name of a tiny model, into a checkpoint directory: weights, tokenizer, chat template.

    python -m prfaas.engine.transformers.convert GGUF OUT
    python -m prfaas.engine.transformers.convert --build NAME OUT

It knows transformers' own reader of GGUF; it does not know catalogs or caches. Weights are written as float32: engines
compute in float32 by default and then map the file, so that all nodes of a machine share one copy of it. (From a
bfloat16 file, half as large, each node makes a float32 copy of its own.)
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path


def convert(gguf: Path, out: Path) -> None:
    """Write the model in `gguf` to the directory `out`. Raises what transformers raises when it cannot read it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    where, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    # The weights are whole numbers no longer: what is written is an ordinary checkpoint.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)


def main() -> None:
    """The command. `--until-eof`: end at once when standard input ends, which is when the parent does."""
    parser = argparse.ArgumentParser(prog="convert", description="Write a Hugging Face checkpoint directory.")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    parser.add_argument("--build", action="store_true", help="SOURCE names a tiny model to build")
    parser.add_argument("source", help="a GGUF file")
    parser.add_argument("out", type=Path, help="the directory to write")
    options = parser.parse_args()
    if options.until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.build:
        from prfaas.core.errors import ConfigError
        from prfaas.engine.transformers.tiny import build_tiny

        try:
            build_tiny(options.source, options.out)
        except ConfigError as error:
            sys.exit(str(error))
    else:
        convert(Path(options.source), options.out)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
