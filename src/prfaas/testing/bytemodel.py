"""The byte model of `model.bytemodel` as tests want it: its template refuses a role, for tests of refusals."""

from __future__ import annotations

from pathlib import Path

from prfaas.model import bytemodel
from prfaas.model.bytemodel import BOS, EOS, VOCAB, byte_tokenizer

__all__ = ["BOS", "EOS", "TEMPLATE", "VOCAB", "byte_tokenizer", "write_byte_model"]

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'developer' %}{{ raise_exception('no developers here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_byte_model(directory: Path, *, chat: bool = True) -> Path:
    """Fill `directory` (made if missing) with such a model; it is returned."""
    return bytemodel.write_byte_model(directory, TEMPLATE if chat else None)
