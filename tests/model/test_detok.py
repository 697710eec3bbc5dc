"""Streamed text is the whole text, however it is cut, up to the first stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from prfaas.model.detok import Detokenizer, StopMatcher, TextStream
from prfaas.testing.bytemodel import EOS, byte_tokenizer

BYTES = byte_tokenizer()


def fallback_tokenizer() -> Tokenizer:
    """A sentencepiece-like one: some letters, all else as <0xNN> bytes, a leading blank that decoding strips."""
    vocab = {"<unk>": 0, "<s>": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)}
    for word in ("▁", "a", "b", "▁a", "ab", "é", "▁▁"):
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


FALLBACK = fallback_tokenizer()
ALPHABET = st.text(st.sampled_from("aé漢😀 b▁\n"), max_size=14)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    machine = Detokenizer(tokenizer, special)
    return [*(machine.push(token) for token in ids), machine.flush()]


@given(st.lists(st.integers(0, EOS), max_size=60))
def test_any_bytes(ids: list[int]) -> None:
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids, skip_special_tokens=True)


@given(ALPHABET, st.integers(0, 40))
def test_byte_fallback(text: str, cut: int) -> None:
    ids = FALLBACK.encode(text).ids
    whole = FALLBACK.decode(ids, skip_special_tokens=True)
    assert "".join(pieces(FALLBACK, ids)) == whole
    assert whole.startswith("".join(pieces(FALLBACK, ids[:cut])).rstrip("\ufffd"))


@given(st.lists(st.integers(0, FALLBACK.get_vocab_size() - 1), max_size=40))
def test_noise_in_byte_fallback_never_fails(ids: list[int]) -> None:
    pieces(FALLBACK, ids)


@given(ALPHABET)
def test_no_character_comes_in_halves(text: str) -> None:
    for tokenizer in (BYTES, FALLBACK):
        assert not any("\ufffd" in piece for piece in pieces(tokenizer, tokenizer.encode(text).ids))


def test_a_character_of_four_tokens() -> None:
    assert pieces(BYTES, [*"a😀".encode()]) == ["a", "", "", "", "😀", ""]
    assert pieces(BYTES, [*"a😀".encode()][:-1]) == ["a", "", "", "", "\ufffd"]


def test_special_tokens_are_no_text_and_are_not_kept() -> None:
    assert pieces(BYTES, [EOS] * 5 + [97, EOS, 98]) == [""] * 5 + ["a", "", "b", ""]


def test_noise_is_held_in_bounds() -> None:
    machine = Detokenizer(BYTES, frozenset())
    given_out = "".join(machine.push(0xFF) for _ in range(1000))
    assert len(given_out) >= 1000 - 64


STOPS = st.lists(st.text(st.sampled_from("ab\n"), min_size=1, max_size=4), max_size=4)


def cut_at_first(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the shortest beginning that ends with a stop string, without the longest such stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(st.text(st.sampled_from("ab\n"), max_size=5), max_size=12), STOPS)
def test_stops_do_not_depend_on_the_cut(cuts: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out = "".join(matcher.push(piece) for piece in cuts) + matcher.flush()
    assert (out, matcher.hit) == cut_at_first("".join(cuts), stops)


@given(st.text(st.sampled_from("ab\n"), max_size=30), STOPS)
def test_nothing_is_held_longer_than_needed(text: str, stops: list[str]) -> None:
    matcher, out = StopMatcher(stops), ""
    for end, letter in enumerate(text, 1):
        out += matcher.push(letter)
        if matcher.hit is not None:
            break
        held = text[len(out) : end]
        assert held == "" or any(stop.startswith(held) for stop in stops)


@given(ALPHABET, st.lists(st.text(st.sampled_from("aé漢😀"), min_size=1, max_size=3), max_size=3))
def test_the_whole_stream(text: str, stops: list[str]) -> None:
    for tokenizer in (BYTES, FALLBACK):
        stream = TextStream(Detokenizer(tokenizer, frozenset({1}) if tokenizer is FALLBACK else frozenset()), stops)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        out = ""
        for token in ids:
            out += stream.push(token)
            if stream.stopped:
                break
        else:
            out += stream.finish()
        expected, hit = cut_at_first(tokenizer.decode(ids), stops)
        assert (out, stream.stopped) == (expected, hit is not None)


def test_a_held_beginning_comes_out_at_the_end() -> None:
    stream = TextStream(Detokenizer(BYTES, frozenset()), ["END"])
    assert "".join(stream.push(byte) for byte in b"xEN") == "x"
    assert stream.finish() == "EN"
    assert not stream.stopped


@pytest.mark.parametrize("stops", [["bc", "abcd"], ["abcd", "bc"]])
def test_the_stop_that_ends_first_wins(stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert matcher.push("xabcd") == "xa"
    assert matcher.hit == "bc"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""
