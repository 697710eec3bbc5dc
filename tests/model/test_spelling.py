"""Single tokens as bytes, for every way in which tokenizers spell them."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from prfaas.model.bytemodel import BOS, byte_tokenizer
from prfaas.model.spelling import Spelling, byte_letters
from prfaas.model.text import Text


def tokenizer(words: list[str], decoder: object) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    made.decoder = decoder
    made.add_special_tokens([AddedToken("<end>", special=True)])
    return made


def test_byte_level() -> None:
    spelling = Spelling(byte_tokenizer())
    assert [spelling.of(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert spelling.of(BOS) == b"<s>"
    assert spelling.of(100_000) == spelling.of(-1) == b""
    assert sorted(byte_letters().values()) == list(range(256))


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()]),
    ],
    ids=["gemma", "llama", "metaspace"],
)  # fmt: skip
def test_sentencepiece(decoder: object) -> None:
    """Blanks at the beginning stay, which decoding a token alone may lose; bytes are bytes."""
    spelling = Spelling(tokenizer(["▁the", "▁▁", "é", "<0xF0>", "<0x0A>", "<0xZZ>"], decoder))
    assert [spelling.of(token) for token in range(7)] == [
        b" the", b"  ", "é".encode(), b"\xf0", b"\n", b"<0xZZ>", b"<end>",
    ]  # fmt: skip


def test_what_only_the_decoder_knows() -> None:
    assert [Spelling(tokenizer(["the", "##ing"], decoders.WordPiece())).of(token) for token in range(2)] == [
        b"the", b"##ing",
    ]  # fmt: skip
    assert Spelling(tokenizer(["the", "x"], None)).of(1) == b"x"


@pytest.mark.parametrize("text", ["", "plain", "naïve 😀 日本"])
def test_offsets(text: str) -> None:
    """Each token's place is that of the character which its bytes are of."""
    made = Text(byte_tokenizer(), template=None, stop_ids=frozenset(), vocab_size=258)
    places = [index for index, char in enumerate(text) for _ in char.encode()]
    assert made.offsets([BOS, *text.encode(), BOS]) == [0, *places, len(text)]
    made.close()
