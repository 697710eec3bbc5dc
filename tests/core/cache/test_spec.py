"""What a pool takes from a layout."""

from __future__ import annotations

import pytest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.cache.spec import PoolSpec, block_bytes
from prfaas.core.errors import LocalError

MLA = Part(0, "latent", PartKind.TOKENS, (1, 576), "bfloat16", sharded=False)
STATE = Part(1, "recurrent", PartKind.STATE, (4, 128, 128), "float32")
WINDOW = Part(2, "k", PartKind.WINDOW, (2, 64), "bfloat16", window=100)


def test_a_snapshot_is_states_and_last_windows_in_whole_blocks() -> None:
    layout = KVLayout("x", (MLA, STATE, WINDOW))
    assert block_bytes(layout, 64) == 64 * 1152
    assert PoolSpec.of_layout(layout, 64) == PoolSpec(64, -(-(262_144 + 25_600) // 73_728), window_tokens=100)
    assert PoolSpec.of_layout(KVLayout("x", (MLA,)), 64) == PoolSpec(64)


@pytest.mark.parametrize(("block", "every"), [(512, 512), (64, 64), (16, 64), (48, 192), (1, 64)])
def test_snapshots_sit_on_64_tokens_and_on_blocks(block: int, every: int) -> None:
    assert PoolSpec(block, 1).snapshot_tokens == every


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(LocalError, match="got no part of kind tokens"):
        PoolSpec.of_layout(KVLayout("x", (STATE,)), 64)
    with pytest.raises(LocalError, match="block_tokens: got 0; expected at least 1"):
        PoolSpec(0)
    with pytest.raises(LocalError, match="snapshot_blocks: got -1"):
        PoolSpec(64, -1)
    with pytest.raises(LocalError, match="snapshot_tokens: got 96; expected a multiple of block_tokens, 64"):
        PoolSpec(64, 1, 96)
