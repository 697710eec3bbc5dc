"""A text's least number of tokens is never over what its tokenizer makes of it, whatever the text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from prfaas.model.bound import MAX_CHAR_BYTES, NFC_SHRINKS, SLICE_CHARS, token_bound
from prfaas.model.bytemodel import byte_tokenizer
from prfaas.model.spelling import byte_letters


def byte_level() -> Tokenizer:
    """Bytes, and words of up to eight."""
    words = [*byte_letters(), "aa", "aaaa", "aaaaaaaa", "ĠĠ", "ĠĠĠĠ"]
    merges = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ")]
    made = Tokenizer(models.BPE(vocab={word: id_ for id_, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|end|>", "<|a rather long one|>"])
    return made


def with_marks() -> Tokenizer:
    """Blanks become marks, and bytes stand for what is in no word."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "aa", "é"]
    merges = [("▁", "a"), ("a", "a")]
    vocab = {word: id_ for id_, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.add_special_tokens(["</s>"])
    made.add_tokens([AddedToken("a a", normalized=True)])
    return made


def with_unknowns(fuse: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={"<unk>": 0, "a": 1}, merges=[], unk_token="<unk>", fuse_unk=fuse))
    made.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    return made


def composed() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.NFC()
    parts = [pre_tokenizers.Split(Regex(r"\s+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return made


def letters_early() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.Split(Regex("x"), "merged_with_next")
    return made


def letters_missing() -> Tokenizer:
    """As a training that saw little leaves them: what it has no letter for it drops."""
    words = [letter for letter, byte in byte_letters().items() if byte not in (0x04, 0xC0, 0xF0, 0xF1, ord("b"))]
    made = Tokenizer(models.BPE(vocab={word: id_ for id_, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|b|>"])
    return made


BOUNDED = [letters_missing, byte_tokenizer, byte_level, with_marks, with_unknowns, composed, letters_early]
PIECES = st.sampled_from(
    ["a" * 8, " " * 4, "a a", "<|end|>", "<|a rather long one|>", "<s>", "</s>", "é", "e\u0301", "😀"]
)
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join)
MADE = {make: make() for make in BOUNDED}


@pytest.mark.parametrize("make", BOUNDED)
@given(text=TEXTS)
@example(text="\u01d6" * 40)
@example(text="u\u0308\u0304" * 40)
@example(text="\u212a" * 40)
@example(text="<|a rather long one|>" * 20)
@example(text="a" * 8 * 50)
@example(text="\x04bb😀" * 20 + "<|b|>")
def test_it_is_never_too_much(make: Callable[[], Tokenizer], text: str) -> None:
    bound = token_bound(MADE[make])
    assert bound is not None
    assert bound.least(text) <= len(MADE[make].encode(text, add_special_tokens=False).ids)


def test_it_says_something() -> None:
    bytes_, words = token_bound(byte_tokenizer()), token_bound(byte_level())
    assert bytes_ is not None
    assert words is not None
    assert bytes_.least("hé 😀" * 1000) == 8000, "a token a byte"
    assert bytes_.least("hé<s>" * 1000) == 3000, "what may be a token of its own is not counted as others"
    assert words.least("b" * 8000) == 1000
    assert words.least("<|a rather long one|>" * 8) == 8
    assert words.least("") == 0
    some = token_bound(letters_missing())
    assert some is not None
    assert (some.least("ab\x04" * 9), some.least("\x04" * 99)) == (9, 0)
    assert bytes_.least("é" * (2 * SLICE_CHARS + 1)) == 4 * SLICE_CHARS + 2


@given(text=st.text(alphabet=st.characters(exclude_characters="<", exclude_categories=["Cs"])))
def test_it_is_exact_for_bytes(text: str) -> None:
    made = MADE[byte_tokenizer]
    bound = token_bound(made)
    assert bound is not None
    assert bound.least(text) == len(made.encode(text, add_special_tokens=False).ids)


def changed(make: Callable[[], Tokenizer], **parts: Any) -> Tokenizer:
    made = make()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def added(**how: Any) -> Tokenizer:
    made = byte_level()
    made.add_tokens([AddedToken("<x>", **how)])
    return made


WORDS = {"[UNK]": 0, "a": 1}
SINGLE = processors.TemplateProcessing(single="<|end|>", special_tokens=[("<|end|>", 261)])
UNBOUNDED: dict[str, Callable[[], Tokenizer]] = {
    "blanks before an added token": lambda: added(lstrip=True),
    "blanks after an added token": lambda: added(rstrip=True),
    "a normalizer that strips": lambda: changed(byte_level, normalizer=normalizers.Strip()),
    "one that folds": lambda: changed(byte_level, normalizer=normalizers.NFKC()),
    "one that lowers": lambda: changed(byte_level, normalizer=normalizers.Lowercase()),
    "one that replaces by less": lambda: changed(byte_level, normalizer=normalizers.Replace("  ", " ")),
    "one that replaces what it likes": lambda: changed(byte_level, normalizer=normalizers.Replace(Regex(" +"), "____")),
    "one of several": lambda: changed(
        byte_level, normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])
    ),
    "letters that are changed again": lambda: changed(
        letters_early, normalizer=normalizers.Sequence([normalizers.ByteLevel(), normalizers.Replace("Ġ", "▁")])
    ),
    "a cut that removes": lambda: changed(byte_level, pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
    "blanks between words": lambda: changed(byte_level, pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "letters and marks": lambda: changed(
        byte_level,
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(), pre_tokenizers.Metaspace()]),
    ),
    "bytes that are in no word": lambda: changed(byte_level, pre_tokenizer=None),
    "letters that are missing, behind a normalizer": lambda: changed(letters_missing, normalizer=normalizers.NFC()),
    "no word at all": lambda: changed(byte_level, model=models.BPE(vocab={}, merges=[])),
    "unknowns in one": lambda: with_unknowns(fuse=True),
    "words with a prefix": lambda: Tokenizer(
        models.BPE(vocab={"<unk>": 0, "a": 1, "##a": 2}, merges=[], unk_token="<unk>", continuing_subword_prefix="##")
    ),
    "whole words": lambda: Tokenizer(models.WordLevel(vocab=WORDS, unk_token="[UNK]")),
    "pieces of words": lambda: Tokenizer(models.WordPiece(vocab=WORDS, unk_token="[UNK]")),
    "the likeliest pieces": lambda: Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
    "a prompt that is left out": lambda: changed(byte_level, post_processor=SINGLE),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_there_is_none_where_nothing_is_sure(name: str) -> None:
    made = UNBOUNDED[name]()
    made.decoder = decoders.ByteLevel()
    assert token_bound(made) is None


@pytest.mark.slow
def test_how_much_composing_shrinks() -> None:
    """Of each character that Unicode has: as the bound's reasoning needs it."""
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000 or (char := chr(code)) != unicodedata.normalize("NFC", char):
            continue
        parts = len(unicodedata.normalize("NFD", char))
        if parts > 1:
            assert parts * MAX_CHAR_BYTES <= NFC_SHRINKS * len(char.encode()), hex(code)
