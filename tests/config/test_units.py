"""Quantities with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.config.units import Bandwidth, Duration, Endpoint, Quantity, Size, Timeout, is_loopback

KINDS = [Duration, Timeout, Bandwidth, Size]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Duration, "20ms", 20_000_000),
        (Duration, "0s", 0),
        (Duration, "-0s", 0),
        (Duration, "1.5 s", 1_500_000_000),
        (Timeout, "2h", 7_200_000_000_000),
        (Bandwidth, "1Gbps", 1_000_000_000),
        (Bandwidth, "0.5Mbps", 500_000),
        (Size, "2GiB", 2_147_483_648),
        (Size, "1kB", 1000),
        (Size, "1KiB", 1024),
    ],
)
def test_reads(kind: type[Quantity], text: str, value: int) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        (Duration, "20", r"expected a duration with a unit \(ns, us, ms, s, m, h\)"),
        (Duration, 20, "got 20; expected a duration"),
        (Duration, None, "got None"),
        (Duration, "-5ms", "negative"),
        (Duration, "1e3s", "expected a duration"),
        (Duration, "\u0665ms", "expected a duration"),
        (Duration, "0.1ns", "whole number of ns"),
        (Duration, "99999999999999h", "too large"),
        (Duration, "9" * 30 + "s", "expected a duration"),
        (Timeout, "0s", "more than zero"),
        (Bandwidth, "1GBps", "bits a second"),
        (Bandwidth, "1gbps", "bits a second"),
        (Bandwidth, "0Gbps", "more than zero"),
        (Size, "1Gb", "size in bytes"),
        (Size, True, "got True"),
    ],
)
def test_refuses(kind: type[Quantity], text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        kind.parse(text)


@given(st.sampled_from(KINDS), st.integers(1, 2**60))
def test_what_is_written_is_read_again(kind: type[Quantity], value: int) -> None:
    assert kind.parse(kind(value).text()) == value


@given(st.sampled_from([*KINDS, Endpoint]), st.text(max_size=30))
def test_any_text_is_read_or_refused(kind: type[Quantity] | type[Endpoint], text: str) -> None:
    said = "expected"
    try:
        kind.parse(text)
    except ValueError as error:
        said = str(error)
    assert "expected" in said


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("[::1]:1", "::1", 1, True),
        ("localhost:65535", "localhost", 65535, True),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("node-3.example:80", "node-3.example", 80, False),
    ],
)
def test_endpoints(text: str, host: str, port: int, loopback: bool) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port, endpoint.loopback) == (host, port, loopback)
    assert Endpoint.at(host, port) == endpoint
    assert endpoint.wildcard == (host == "0.0.0.0")


@pytest.mark.parametrize(
    "text", ["8000", ":8000", "a:0", "a:65536", "a:b", "::1:80", "[zz]:80", "[1:2]:3", "a b:3", 8000, "a:80\n"]
)
def test_not_endpoints(text: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        Endpoint.parse(text)


def test_a_name_that_only_looks_local_is_not_loopback() -> None:
    assert not is_loopback("127.0.0.1.example.org")
    assert is_loopback("127.9.9.9")
