"""The bytes behind one token id, which is what log-probabilities show: a token may be part of a character.

It knows how tokenizers spell bytes (GPT-2's letters, byte fallback, a mark for blanks); it does not know texts.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class Spelling:
    """Bytes of single tokens, with blanks that a text's beginning would lose."""

    __slots__ = ("_added", "_blanks", "_byte_level", "_fallback", "_letters", "_plain", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoders = _decoders(tokenizer)
        kinds = {str(decoder.get("type")) for decoder in decoders}
        self._tokenizer = tokenizer
        self._added = {id_: token.content.encode() for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self._byte_level = "ByteLevel" in kinds
        self._fallback = "ByteFallback" in kinds
        self._letters = byte_letters() if self._byte_level else {}
        # What stands for a blank: text to put in its place.
        self._blanks = [
            (str(decoder["pattern"]["String"]), str(decoder["content"]))
            for decoder in decoders
            if decoder.get("type") == "Replace" and "String" in decoder.get("pattern", {})
        ] + [(str(decoder["replacement"]), " ") for decoder in decoders if decoder.get("type") == "Metaspace"]
        self._plain = bool(self._blanks) or self._fallback
        """Whether a token is its own text but for blanks; else only the decoder knows."""

    def of(self, token: int) -> bytes:
        """The bytes of `token`: a special one's name, nothing for an id that the tokenizer does not have."""
        if token in self._added:
            return self._added[token]
        word = self._tokenizer.id_to_token(token) if token >= 0 else None
        if word is None:
            return b""
        if self._byte_level and all(letter in self._letters for letter in word):
            return bytes(self._letters[letter] for letter in word)
        if self._fallback and (byte := _BYTE.match(word)):
            return bytes([int(byte[1], 16)])
        if not self._plain:
            return self._tokenizer.decode([token]).encode()
        for mark, text in self._blanks:
            word = word.replace(mark, text)
        return word.encode()


def byte_letters() -> dict[str, int]:
    """GPT-2's printable letter of each byte -> the byte: itself where it is one, else the next from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in plain else next(others)): byte for byte in range(256)}


def _decoders(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The decoder's parts, as tokenizer.json writes them."""
    if tokenizer.decoder is None:
        return []
    found = json.loads(tokenizer.decoder.__getstate__())
    many = found.get("decoders") if found.get("type") == "Sequence" else [found]
    return [part for part in many or [] if isinstance(part, dict)]
