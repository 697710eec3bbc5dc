"""How few tokens a text can become, whatever its tokenizer does: what cannot fit is refused without tokenizing it.

It knows the tokenizer.json format of Hugging Face's tokenizers, and trusts only what it knows by name: a part that is
not listed here may drop or shrink text, and then there is no bound. Where there is one, each byte of the text is
covered by some token, and no token covers more than `longest` of them.

    part              covers every byte when
    added tokens      none strips blanks beside it (which may be any number)
    normalizer        none; ByteLevel, Prepend, Replace by nothing shorter; NFC, which shrinks to a sixth at most
    pre-tokenizer     none; ByteLevel, Digits, Metaspace, Split and Punctuation that remove nothing
    model             BPE that knows all bytes, or that has one unknown token for each character
    post-processor    only adds
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from prfaas.model.spelling import byte_letters

Part = Mapping[str, Any]

NFC_SHRINKS = 6
"""A character has at most 4 bytes, so a text has at least a fourth of its bytes in characters, and decomposed no
fewer; what they compose to has at least two bytes for each three of them (the worst is U+01D6, two bytes of three)."""
MAX_CHAR_BYTES = 4
MAX_COUNTED = 8
"""Added tokens that are longer than the model's own are looked for, if there are so few of them."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    """`longest`: bytes of a text that one token covers at most. `usual`: the same of a token that is none of `added`,
    which are written in a text as they are, and longer."""

    longest: int
    usual: int
    added: tuple[str, ...] = ()

    def least(self, text: str) -> int:
        """Tokens of `text`, at least."""
        size_bytes = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        least = -(-size_bytes // self.longest)
        if self.longest == self.usual:
            return least
        # Those that are found are counted as if each were taken: what is left is covered by usual ones.
        others = size_bytes - sum(text.count(token) * len(token.encode()) for token in self.added)
        return max(least, -(-others // self.usual))


def token_bound(tokenizer: Tokenizer) -> TokenBound | None:
    """The bound that `tokenizer` guarantees, or None when it guarantees none."""
    parts = json.loads(tokenizer.to_str())
    model, normalizer = parts["model"], parts.get("normalizer")
    shrinks = _shrinks(normalizer)
    if shrinks is None or not _keeps(parts.get("pre_tokenizer")) or not _only_adds(parts.get("post_processor")):
        return None
    usual = _longest_of(model, _bytes_are_letters(normalizer, parts.get("pre_tokenizer")))
    added = parts.get("added_tokens", [])
    if not usual or any(token["lstrip"] or token["rstrip"] for token in added):
        return None
    normal: Callable[[str], str] = tokenizer.normalizer.normalize_str if normalizer else str
    written = [token["content"] for token in added]
    sizes = [max(len(text.encode()), len(normal(text).encode())) for text in written]
    longest = max([usual, *sizes]) * shrinks
    longer = tuple(text for text, size in zip(written, sizes, strict=True) if size > usual)
    if normalizer is not None or len(longer) > MAX_COUNTED:
        return TokenBound(longest, longest)
    return TokenBound(longest, usual, longer)


def _kinds(part: Part | None, inside: str) -> Sequence[Part]:
    """The parts of a sequence, or the one, or none."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [one for listed in part[inside] for one in _kinds(listed, inside)]
    return [part]


def _bytes_are_letters(normalizer: Part | None, pre_tokenizer: Part | None) -> bool:
    """Whether the model sees a letter for each byte, and nothing else: what comes after only cuts."""
    before = [one["type"] for one in _kinds(normalizer, "normalizers")]
    after = [one["type"] for one in _kinds(pre_tokenizer, "pretokenizers")]
    return "Metaspace" not in after and ("ByteLevel" in after or before[-1:] == ["ByteLevel"])


def _shrinks(normalizer: Part | None) -> int | None:
    """By what factor a text's bytes may shrink; None when there is no telling."""
    factor = 1
    for one in _kinds(normalizer, "normalizers"):
        match one:
            case {"type": "ByteLevel" | "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                if len(new.encode()) < len(old.encode()):
                    return None
            case {"type": "NFC"}:
                factor *= NFC_SHRINKS
            case _:
                return None
    return factor


def _keeps(pre_tokenizer: Part | None) -> bool:
    """Whether it only cuts, or makes more of it."""
    for one in _kinds(pre_tokenizer, "pretokenizers"):
        match one:
            case {"type": "ByteLevel" | "Digits" | "Metaspace"}:
                pass
            case {"type": "Split" | "Punctuation", "behavior": str(behaviour)} if behaviour != "Removed":
                pass
            case _:
                return False
    return True


def _only_adds(post_processor: Part | None) -> bool:
    for one in _kinds(post_processor, "processors"):
        match one:
            case {"type": "ByteLevel" | "RobertaProcessing" | "BertProcessing"}:
                pass
            case {"type": "TemplateProcessing", "single": list(pieces)}:
                if not any(piece.get("Sequence", {}).get("id") == "A" for piece in pieces):
                    return False
            case _:
                return False
    return True


def _longest_of(model: Part, bytes_are_letters: bool) -> int:
    """Bytes that a token of the model covers at most; 0 when it may pass over some, or take many for one."""
    if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return 0
    words: Mapping[str, int] = model["vocab"]
    if bytes_are_letters:  # a character of a word is a byte of the text
        return max(map(len, words)) if all(letter in words for letter in byte_letters()) else 0
    longest = max(MAX_CHAR_BYTES, *(len(word.encode()) for word in words))
    if model.get("byte_fallback"):
        return longest if all(f"<0x{byte:02X}>" in words for byte in range(256)) else 0
    return longest if model.get("unk_token") in words and not model.get("fuse_unk") else 0
