"""A model directory without weights: a byte tokenizer, a chat template and end marks, enough to serve text with.

It knows the files that `model.text` reads. One token is one byte: ids 0 to 255 are the bytes, `BOS` and `EOS` follow.
It is what emulated engines serve.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS = 256, 257
VOCAB = 258

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and a BOS before plain prompts."""
    letters = _letters()
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(letters)}, merges=[]))
    # Cut into words, though no token is longer than a byte: what the library remembers is words then, not prompts.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def write_byte_model(directory: Path, template: str | None = TEMPLATE) -> Path:
    """Fill `directory` (made if missing) with such a model, that chats by `template`; it is returned."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True}}
    files = {
        "config.json": {"model_type": "bytes", "vocab_size": VOCAB},
        "generation_config.json": {"eos_token_id": [EOS]},
        "tokenizer_config.json": said | ({"chat_template": template} if template else {}),
    }
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value), encoding="utf-8")
    return directory


def _letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself where it is one, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
