"""Event streams: any cut gives the same events, nothing is kept without bound."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import ProtocolError
from prfaas.wire.sse import DONE, Event, EventReader, event_bytes

LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)


@given(st.lists(LINES, max_size=6), st.sampled_from(["\n", "\r", "\r\n"]), st.lists(st.integers(0, 200), max_size=8))
def test_cut_anywhere(texts: list[str], newline: str, cuts: list[int]) -> None:
    raw = "".join(f"data: {text}\n\n" for text in texts).replace("\n", newline).encode() + DONE
    edges = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    reader = EventReader()
    events = [event for a, b in pairwise(edges) for event in reader.feed(raw[a:b])]
    assert events == [*(Event(text) for text in texts), Event("[DONE]")]


def test_fields() -> None:
    raw = b": a comment\n\xef\xbb\xbfevent: x\nid: 4\ndata:one\ndata: two\nretry: 5\ndata\n\nevent: y\n\ndata: z\n\n"
    assert EventReader().feed(raw) == [Event("one\ntwo\n"), Event("z")]  # the mark counts at the very beginning only
    assert EventReader().feed(b"\xef\xbb\xbfevent: x\ndata: 1\n\n") == [Event("1", "x")]
    assert EventReader().feed(event_bytes(b"{}", "error")) == [Event("{}", "error")]


def test_done_is_the_whole_data() -> None:
    events = EventReader().feed(b'data: {"text":"data: [DONE]"}\n\ndata: [DONE] x\n\ndata: [DONE]\n\n')
    assert [event.is_done for event in events] == [False, False, True]


def test_what_the_end_cuts_off_is_no_event() -> None:
    reader = EventReader()
    assert reader.feed(b"data: [DONE]") == []
    assert reader.feed(b"\n") == []
    assert reader.feed(b"\n") == [Event("[DONE]")]


def test_bounds() -> None:
    reader = EventReader(max_line=100)
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProtocolError, match="line_too_long"):
        reader.feed(b"x" * 10)
    with pytest.raises(ProtocolError, match="event_too_long"):
        EventReader(max_event=100).feed(b"data: 123456789\n" * 20)
    with pytest.raises(ProtocolError, match="bad_utf8"):
        EventReader().feed(b"data: \xff\n")
