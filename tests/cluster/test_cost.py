"""What a head reads of a prefill's cost from a node's answer, whoever answers."""

from __future__ import annotations

import pytest

from prfaas.cluster.computed import cost_of


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b'{"kv_transfer_params": {"computed_ns": 5, "bytes": 7}, "usage": {"prompt_tokens": 9}}', (5, 0)),
        (b'{"kv_transfer_params": {"computed_ns": null}, "usage": {"prompt_tokens_details": null}}', (None, 0)),
        (b'{"kv_transfer_params": {"remote_block_ids": [1]}, "usage": null}', (None, 0)),
        (b'{"kv_transfer_params": null, "usage": {"prompt_tokens_details": {"cached_tokens": 64}}}', (None, 64)),
        (b'{"kv_transfer_params": {"computed_ns": -5}}', (None, 0)),
        (b'{"usage": {"prompt_tokens_details": {"cached_tokens": -1}}}', (None, 0)),
        (b"[]", (None, 0)),
        (b"\xff", (None, 0)),
        (b"", (None, 0)),
    ],
)
def test_what_is_said_counts_and_what_is_not_well_said_is_not(answer: bytes, found: tuple[int | None, int]) -> None:
    assert cost_of(answer) == found
