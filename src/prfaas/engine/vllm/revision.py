"""What names model and weights, so that both sides can tell whether their KV means the same."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from prfaas.core.errors import ConfigError
from prfaas.engine.transformers.checkpoint import open_checkpoint


def revision_of(model: Any) -> str:
    """Of vLLM's ModelConfig: of the checkpoint's contents where they are a local directory, the same as the
    transformers engine's; else of the name, the revision and the config."""
    directory = Path(model.model)
    if directory.is_dir():
        try:
            return open_checkpoint(directory).revision()
        except ConfigError:
            said = (directory / "config.json").read_bytes()
            index = directory / "model.safetensors.index.json"
            return hashlib.sha256(said + (index.read_bytes() if index.is_file() else b"")).hexdigest()
    text = f"{model.model}\0{model.revision}\0{model.hf_config.to_json_string()}"
    return hashlib.sha256(text.encode()).hexdigest()
