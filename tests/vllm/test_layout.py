"""What the connector makes of vLLM's cache config. The specs are stand-ins with vLLM's names and fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from prfaas.core.cache.layout import PartKind
from prfaas.core.errors import ConfigError, InvariantError
from prfaas.engine.vllm.groups import Group, Rows
from prfaas.engine.vllm.layout import cache_map, groups_of
from prfaas.engine.vllm.version import require_supported


@dataclass
class FullAttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 2
    head_size: int = 64
    head_size_v: int = 64
    dtype: str = "torch.bfloat16"
    kv_quant_mode: Any = field(default_factory=lambda: SimpleNamespace(name="NONE"))
    state_content_bytes: int | None = None
    num_head_slots: int | None = None
    tokens_per_state: int = 1


@dataclass
class MLAAttentionSpec(FullAttentionSpec):
    head_size: int = 576
    head_size_v: int = 0
    num_kv_heads: int = 1


@dataclass
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int = 128


@dataclass
class ChunkedLocalAttentionSpec(FullAttentionSpec):
    attention_chunk_size: int = 128


@dataclass
class MambaSpec:
    shapes: tuple[tuple[int, ...], ...] = ((3, 1024), (8, 64, 32))
    dtypes: tuple[str, ...] = ("torch.bfloat16", "torch.float32")
    block_size: int = 384
    mamba_cache_mode: str = "align"
    mamba_type: Any = field(default_factory=lambda: SimpleNamespace(name="GDN_ATTN"))


def config(*groups: tuple[list[str], Any]) -> Any:
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(layer_names=names, kv_cache_spec=spec) for names, spec in groups]
    )


def test_names_shapes_and_order_are_those_of_the_other_engines():
    found = cache_map(
        config(
            (["model.layers.1.self_attn.attn"], SlidingWindowSpec()),
            (["model.layers.0.linear_attn"], MambaSpec()),
            (["model.layers.2.self_attn.attn"], MLAAttentionSpec()),
            (["model.layers.3.self_attn.attn"], FullAttentionSpec(num_kv_heads=1, head_size_v=32)),
        )
    )
    parts = [
        (part.layer, part.name, part.kind.value, part.shape, part.dtype, part.window, part.sharded)
        for part in found.layout("r").parts
    ]
    assert parts == [
        (0, "conv.0", "state", (1, 3, 1024), "bfloat16", 0, True),
        (0, "recurrent.0", "state", (8, 64, 32), "float32", 0, True),
        (1, "k", "window", (2, 64), "bfloat16", 127, True),
        (1, "v", "window", (2, 64), "bfloat16", 127, True),
        (2, "kv", "tokens", (1, 576), "bfloat16", 0, False),
        (3, "k", "tokens", (1, 64), "bfloat16", 0, False),
        (3, "v", "tokens", (1, 32), "bfloat16", 0, False),
    ]
    assert found.groups == (
        Group(PartKind.WINDOW, 16, 127),
        Group(PartKind.STATE, 384),
        Group(PartKind.TOKENS, 16),
        Group(PartKind.TOKENS, 16),
    )


def test_block_sizes_are_not_of_the_layout():
    one, other = (cache_map(config((["layers.0.attn"], FullAttentionSpec(block_size=size)))) for size in (16, 128))
    assert one.layout("r") == other.layout("r")


def test_a_layer_with_both_attention_and_a_state():
    found = cache_map(
        config(
            (["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"], FullAttentionSpec()),
            (["model.layers.0.mamba", "model.layers.1.mamba"], MambaSpec(mamba_cache_mode="none")),
        )
    )
    assert [part.name for part in found.layout("r").of_layer(1)] == ["k", "v", "conv.0", "recurrent.0"]
    assert not found.groups[1].positional


@pytest.mark.parametrize(
    ("kind", "shapes", "names"),
    [
        ("SHORT_CONV", ((2, 256),), ["conv.0"]),
        ("LINEAR", ((4, 64, 64),), ["recurrent.0"]),
        ("KDA", ((3, 8), (3, 8), (3, 8), (4, 64, 64)), ["conv.0", "conv.1", "conv.2", "recurrent.0"]),
    ],
)
def test_what_is_a_convolution_and_what_is_recurrent(kind, shapes, names):
    spec = MambaSpec(shapes, ("torch.float32",) * len(shapes), mamba_type=SimpleNamespace(name=kind))
    found = cache_map(config((["model.layers.0.mixer"], spec)))
    assert [part.name for part in found.layout("r").parts] == names


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ChunkedLocalAttentionSpec(), "layers.0.attn: ChunkedLocalAttentionSpec cannot be moved"),
        (FullAttentionSpec(kv_quant_mode=SimpleNamespace(name="FP8_PER_TENSOR")), "FP8_PER_TENSOR"),
        (FullAttentionSpec(tokens_per_state=4), "compressed rows"),
        (FullAttentionSpec(dtype="torch.float64"), "float64"),
        (SlidingWindowSpec(sliding_window=1), "sliding window of 1"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(spec, said):
    with pytest.raises(ConfigError, match=said):
        cache_map(config((["model.layers.0.attn"], spec)))


def test_two_layers_of_one_number():
    with pytest.raises(ConfigError, match=r"are both layer 0 k"):
        cache_map(config((["layers.0.a.attn", "layers.0.b.attn"], FullAttentionSpec())))


def test_a_group_with_a_spec_for_each_layer():
    each = SimpleNamespace(kv_cache_specs={"layers.0.attn": FullAttentionSpec(), "layers.1.attn": MLAAttentionSpec()})
    given = config((["layers.0.attn", "layers.1.attn"], each))
    assert [part.name for part in cache_map(given).layout("r").parts] == ["k", "v", "kv"]
    assert groups_of(given) == (Group(PartKind.TOKENS, 16),)


TABLE = [0, 0, 7, 8, 9]


def test_rows_of_a_window_begin_where_the_window_does():
    group = Group(PartKind.WINDOW, 16, window=20)
    assert group.rows(TABLE, 0, 70, 70) == Rows(50, 70, (8, 9))
    assert group.rows(TABLE, 60, 64, 70) == Rows(60, 64, (8,))
    assert group.rows(TABLE, 0, 48, 70) is None


def test_rows_that_the_table_does_not_have_are_not_guessed():
    with pytest.raises(InvariantError):
        Group(PartKind.TOKENS, 16).rows(TABLE, 20, 70, 70)
    with pytest.raises(InvariantError):
        Group(PartKind.TOKENS, 16).rows(TABLE, 70, 90, 90)


def test_the_block_of_a_state():
    assert Group(PartKind.STATE, 16).state_block(TABLE, 64) == 8
    assert Group(PartKind.STATE, 16).state_block(TABLE, 65) == 9
    assert Group(PartKind.STATE, 16, positional=False).state_block([5], 4000) == 5
    assert Group(PartKind.TOKENS, 16).state_block(TABLE, 64) is None
    with pytest.raises(InvariantError):
        Group(PartKind.STATE, 16).state_block(TABLE, 20)


def test_the_block_in_which_a_window_begins_is_torn_by_a_load():
    group = Group(PartKind.WINDOW, 16, window=20)
    assert group.torn_block(TABLE, 0, 70) == 8  # row 50 is in the block of rows 48 to 63
    assert group.torn_block(TABLE, 0, 68) is None  # row 48 begins it
    assert group.torn_block(TABLE, 64, 70) is None  # it is local
    assert Group(PartKind.TOKENS, 16).torn_block(TABLE, 0, 70) is None


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0", "dev"])
def test_other_versions_of_vllm(version):
    with pytest.raises(ConfigError, match=r"expected 0\.32\.x"):
        require_supported(version)


def test_supported_versions_of_vllm():
    require_supported("0.32.0+cpu")
    require_supported("0.32.4")
