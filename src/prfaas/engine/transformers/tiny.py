"""Tiny random models, made on this machine, so that nothing need be downloaded.

It knows how to draw weights whose output depends on the whole context, and how to write a checkpoint directory with a
byte-level tokenizer; it does not know engines. The same kind is the same bytes everywhere: weights come from integers
of a seeded generator, scaled by one multiplication, so that no vector library's rounding is in them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.utils import logging as hf_logging

from prfaas.core.errors import ConfigError
from prfaas.engine.transformers.tinykinds import TINY_KINDS

RECIPE = 1
"""Grows when the same kind becomes other bytes."""

_MARK = "tiny.json"
_SEED = 20_240_917
_SHARP = 3.0
"""Scale of queries: attention that looks at few tokens, not at the mean of all."""
_CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_tiny(kind: str, directory: Path) -> Path:
    """The checkpoint directory of tiny model `kind`, made at `directory` unless it is there already.

    It appears complete or not at all (built beside it, renamed in), so that several processes may ask for it at once.
    Raises ConfigError for an unknown kind, or when `directory` holds something else.
    """
    if kind not in TINY_KINDS:
        raise ConfigError(f"tiny model {kind!r}: expected one of {', '.join(TINY_KINDS)}")
    mark = json.dumps({"kind": kind, "recipe": RECIPE})
    if _holds(directory, mark):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _write(kind, building)
        (building / _MARK).write_text(mark)
        building.chmod(0o755)
        try:
            building.rename(directory)
        except OSError:
            if not _holds(directory, mark):  # else another process was first
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return directory


def _holds(directory: Path, mark: str) -> bool:
    if not directory.exists() or (directory.is_dir() and not os.listdir(directory)):
        return False
    try:
        if (directory / _MARK).read_text() == mark:
            return True
    except OSError:
        pass
    raise ConfigError(f"{directory}: holds something else than tiny model {mark}; remove it or name another directory")


def _write(kind: str, directory: Path) -> None:
    hf_logging.disable_progress_bar()
    fields = dict(TINY_KINDS[kind])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _draw(model)
    model.save_pretrained(directory)
    _tokenizer().save(str(directory / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": config.max_position_embeddings,
        "chat_template": _CHAT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


def _tokenizer() -> Any:
    vocab = {char: index for index, char in enumerate(_byte_chars())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|pad|>"])
    return tokenizer


def _byte_chars() -> list[str]:
    """The byte-level alphabet in byte order, so that a byte's token id is the byte (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _draw(model: Any) -> None:
    family = model.config.model_type
    generator = torch.Generator().manual_seed(_SEED)
    for name, weight in sorted(model.named_parameters()):
        if "A_log" in name or "dt_bias" in name:
            # Slow to fast decay over the heads, so that states remember thousands of tokens as well as the last few.
            steps = weight.numel()
            low, high = (-9.0, 0.0) if "A_log" in name else (-1.0, 1.0)
            values = [low + (high - low) * step / max(1, steps - 1) for step in range(steps)]
            weight.copy_(torch.tensor(values).view(weight.shape))
        elif "q_norm" in name:
            weight.fill_(_SHARP - 1 if family.startswith("gemma") else _SHARP)  # Gemma's norms add one
        elif weight.dim() >= 2:
            weight.copy_(_bell(weight.shape, _spread(name, family, weight.shape[-1]), generator))
    # Greedy answers are printable: the scores of all other tokens are 0, and the best of 95 is above 0.
    head = model.get_output_embeddings().weight
    head[:0x20] = 0
    head[0x7F:] = 0


def _spread(name: str, family: str, fan_in: int) -> float:
    if "conv" in name:
        return 0.5
    if "embed" in name:  # small beside what the layers add, so that the last token alone decides little
        return 0.3 / math.sqrt(fan_in) if family.startswith("gemma") else 0.3
    return (_SHARP if "q_proj" in name else 1.6) / math.sqrt(fan_in)


def _bell(shape: Any, spread: float, generator: Any) -> Any:
    """Bell-shaped values with mean 0 and standard deviation `spread`: sums of four 16-bit integers, scaled."""
    total = torch.randint(-(1 << 15), 1 << 15, (4, *shape), generator=generator, dtype=torch.int32).sum(0) * 2 + 4
    return total.to(torch.float32) * (spread * math.sqrt(3.0) / (1 << 17))
