"""Which prefixes can be copied at all, and that a copy takes nothing from those who work."""

from __future__ import annotations

import pytest

from prfaas.core.cache.spec import PoolSpec
from prfaas.engine.node.prefixes import Prefixes
from prfaas.model.blockhash import BLOCK_TOKENS


@pytest.mark.parametrize("state", [0, 2])
@pytest.mark.parametrize("block_tokens", [16, 48, 64, 128, 512])
def test_a_node_that_copies_can_keep_every_length_that_the_index_names(block_tokens: int, state: int) -> None:
    """That is every canonical block's end; of a node with state those at which it has snapshots."""
    spec, tokens = PoolSpec(block_tokens, state), list(range(2048))
    prefixes = Prefixes(spec, block_tokens, 200)
    step = spec.snapshot_tokens if state else BLOCK_TOKENS
    named = range(step, 2049, step)
    assert prefixes.copyable == all(prefixes.want_fetched(tokens[:length]) is not None for length in named)
