"""Traces: rows, what a prefix cache saves of them, faults."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.errors import ConfigError
from prfaas.plan.trace import Asked, Row, read_trace, with_hits, without_hits
from prfaas.plan.workload import from_asked


def row(tokens: int, *blocks: int, output: int = 10) -> Row:
    return Row(input_length=tokens, output_length=output, hash_ids=blocks)


def uncached(rows: list[Row], blocks: int | None = None) -> list[int]:
    return [one.uncached for one in with_hits(rows, 512, blocks)]


def test_a_longer_prompt_finds_the_shorter_one() -> None:
    assert uncached([row(1024, 1, 2), row(1500, 1, 2, 3)]) == [1024, 476]


def test_the_last_token_is_always_computed() -> None:
    assert uncached([row(1024, 1, 2), row(1024, 1, 2)]) == [1024, 1]


def test_a_hit_ends_at_the_first_block_that_differs() -> None:
    assert uncached([row(1536, 1, 2, 3), row(1536, 1, 9, 3)]) == [1536, 1024]


def test_a_small_cache_forgets_the_tail_of_what_was_used_least_recently() -> None:
    rows = [row(1024, 1, 2), row(1024, 3, 4), row(1024, 1, 2), row(1024, 3, 4)]
    assert uncached(rows, 4) == [1024, 1024, 1, 1]
    assert uncached(rows, 2) == [1024, 1024, 1024, 1024]
    assert uncached([row(1024, 1, 2), row(512, 3), row(1024, 1, 2)], 2) == [1024, 512, 512]


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=20),
    st.integers(0, 6),
)
def test_every_token_is_cached_or_not_and_the_first_prompt_is_not(ids: list[list[int]], small: int) -> None:
    rows = [row(512 * len(blocks), *blocks) for blocks in ids]
    found = list(with_hits(rows, 512, small))
    assert found[0].uncached == found[0].context
    for one, asked in zip(rows, found, strict=True):
        assert 1 <= asked.uncached <= asked.context == one.input_length
    boundless = uncached(rows)
    assert all(a >= b for a, b in zip(uncached(rows, small), boundless, strict=True))


def test_without_hits_everything_is_computed() -> None:
    assert list(without_hits([row(1024, 1, 2), row(1024, 1, 2)])) == [Asked(1024, 1024, 10)] * 2


def written(path: Path, rows: list[object]) -> Path:
    text = "".join(json.dumps(one) + "\n" for one in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


GOOD = {"timestamp": 5, "input_length": 700, "output_length": 20, "hash_ids": [1, 2]}


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_both_spellings_are_read(tmp_path: Path, name: str) -> None:
    assert list(read_trace(written(tmp_path / name, [GOOD, GOOD]))) == [Row(700, 20, (1, 2), 5.0)] * 2


@pytest.mark.parametrize(
    ("rows", "line", "what"),
    [
        ([GOOD, {"input_length": 5}], 2, "missing required field output_length"),
        ([{**GOOD, "input_length": "5"}], 1, "Expected int"),
        ([{**GOOD, "input_length": 0}], 1, ">= 1"),
        ([GOOD, GOOD, [1]], 3, "Expected object"),
        ([], 1, "empty"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path: Path, rows: list[object], line: int, what: str) -> None:
    path = written(tmp_path / "t.jsonl", rows)
    with pytest.raises(ConfigError, match=what) as caught:
        list(read_trace(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "expected" in str(caught.value)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        list(read_trace(tmp_path / "none.jsonl"))
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_trace(path))
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 50)[:-20])
    with pytest.raises(ConfigError, match=r"t\.jsonl\.gz:"):
        list(read_trace(path))


def test_a_workload_keeps_means_and_joins_equal_lengths() -> None:
    asked = [Asked(10, 100, 5), Asked(10, 300, 7), Asked(30, 30, 9)]
    found = from_asked(asked, None, 64)
    assert found.lengths.tops == (10, 30)
    assert found.lengths.weights == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert found.output == pytest.approx(7)
    assert found.mean_context == pytest.approx(430 / 3)
    assert found.table(lambda u, c: u + c) == (pytest.approx(210), pytest.approx(60))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), min_size=1, max_size=60), st.integers(1, 30))
def test_a_table_has_the_mean_whatever_the_bins(pairs: list[tuple[int, int]], bins: int) -> None:
    asked = [Asked(u, u + more, 1) for u, more in pairs]
    found = from_asked(asked, None, bins)
    table = found.table(lambda u, c: u * 3 + c)
    mean = sum(w * x for w, x in zip(found.lengths.weights, table, strict=True))
    assert mean == pytest.approx(sum(4 * u + more for u, more in pairs) / len(pairs))


@settings(max_examples=40)
@given(st.floats(0, 0.95))
def test_hits_shorten_what_is_computed_and_nothing_else(share: float) -> None:
    before = from_asked([Asked(u, u + 50, 3) for u in (10, 200, 900)], None, 64)
    after = before.with_hits(share)
    assert after.lengths.mean == pytest.approx(before.lengths.mean * (1 - share))
    assert after.mean_context == before.mean_context
    assert after.lengths.weights == before.lengths.weights


def test_a_file_of_blank_lines_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n \n\n")
    with pytest.raises(ConfigError, match=r"t\.jsonl:1: no rows, only blank lines; expected a trace"):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("tokens", "block_tokens", "expected"), [(700, 256, 3), (700, 1024, 1), (1025, 512, 3), (512, 512, 1)]
)
def test_ids_are_one_a_block(tmp_path: Path, tokens: int, block_tokens: int, expected: int) -> None:
    path = written(tmp_path / "t.jsonl", [GOOD, {**GOOD, "input_length": tokens}])
    assert len(list(read_trace(path))) == 2
    with pytest.raises(ConfigError) as caught:
        list(read_trace(path, block_tokens))
    line = 1 if block_tokens != 512 else 2
    assert str(caught.value).startswith(f"{path}:{line}: hash_ids: got 2 for {700 if line == 1 else tokens} tokens; ")
    assert f"expected {expected}, one for each block of {block_tokens} tokens" in str(caught.value)


@settings(max_examples=40)
@given(st.integers(1, 5000), st.integers(1, 1024))
def test_a_row_with_as_many_ids_as_blocks_is_good(tmp_path_factory: pytest.TempPathFactory, n: int, size: int) -> None:
    ids = list(range(-(-n // size)))
    path = written(tmp_path_factory.mktemp("t") / "t.jsonl", [{**GOOD, "input_length": n, "hash_ids": ids}])
    assert next(read_trace(path, size)).input_length == n


def test_rows_without_ids_have_no_hits_and_are_good(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [{"input_length": 700, "output_length": 20}] * 2)
    assert [one.uncached for one in with_hits(read_trace(path, 512), 512, None)] == [700, 700]


def test_rows_against_the_order_of_time_are_refused_where_order_matters(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [GOOD, {**GOOD, "timestamp": 9}, {**GOOD, "timestamp": 8.5}])
    assert len(list(read_trace(path))) == 3
    with pytest.raises(ConfigError, match=r"t\.jsonl:3: timestamp: got 8\.5, after 9 above it; expected rows in the"):
        list(read_trace(path, 512))
