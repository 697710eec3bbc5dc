"""What emulated nodes must answer, computed here: to compare with what came over clusters, links and faults."""

from __future__ import annotations

from prfaas.engine.emulated.derive import Chain, Letters
from prfaas.model.bytemodel import BOS, EOS

LETTERS = Letters(tuple(range(0x20, 0x7F)), EOS)


def expected(prompt: str, max_tokens: int) -> str:
    """Greedy text of the model `emulated` for a plain ASCII prompt."""
    chain, text = Chain([BOS, *prompt.encode()]), ""
    for _ in range(max_tokens):
        token = LETTERS.next(chain.digest(chain.length), b"", b"")
        if token == EOS:
            break
        chain.append(token)
        text += chr(token)
    return text
