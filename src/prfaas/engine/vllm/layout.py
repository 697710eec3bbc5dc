"""What vLLM's cache is made of, asked of its cache config: groups for the scheduler, layers and parts for the workers.

It knows the cache specs of vLLM 0.32 by name, and reads nothing but their fields, so that it needs no vLLM itself. It
does not know tensors. A kind of cache that is not listed here is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prfaas.core.cache.layout import DTYPE_BYTES, KVLayout, Part, PartKind
from prfaas.core.errors import ConfigError
from prfaas.engine.vllm.groups import Group

MOVABLE_WORDS = (
    "full attention, MLA, sliding-window attention, and recurrent layers (Mamba, GDN, KDA, short convolution)"
)
"""For refusals: what can be moved."""

_KINDS = {
    "FullAttentionSpec": PartKind.TOKENS,
    "MLAAttentionSpec": PartKind.TOKENS,
    "SlidingWindowSpec": PartKind.WINDOW,
    "MambaSpec": PartKind.STATE,
}
_LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache: vLLM's name of it, its group, its parts in the order in which they lie in memory, with the
    heads that this worker holds."""

    name: str
    group: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class CacheMap:
    """All of one model's cache on one worker."""

    groups: tuple[Group, ...]
    layers: dict[str, LayerCache]

    def layout(self, revision: str, ranks: int = 1, heads: Callable[[int], int] = lambda layer: 0) -> KVLayout:
        """The layout, which both sides must share. Block sizes are not in it, nor how heads are dealt out to `ranks`
        workers; states are as one worker has them. `heads(layer)`: KV heads of a layer, 0 when that is not known."""
        parts = [_whole(part, ranks, heads(part.layer)) for layer in self.layers.values() for part in layer.parts]
        return KVLayout(revision, tuple(sorted(parts, key=lambda part: part.layer)))


def groups_of(config: Any) -> tuple[Group, ...]:
    """The groups of a KVCacheConfig, in its order. Raises ConfigError for what cannot be moved."""
    return tuple(_group(group) for group in config.kv_cache_groups)


def cache_map(config: Any) -> CacheMap:
    """Groups, layers and parts of a KVCacheConfig. Raises ConfigError for what cannot be moved."""
    layers: dict[str, LayerCache] = {}
    seen: dict[tuple[int, str], str] = {}
    for at, group in enumerate(config.kv_cache_groups):
        for name in group.layer_names:
            parts = tuple(_parts(name, _spec_of(group.kv_cache_spec, name)))
            for part in parts:
                other = seen.setdefault((part.layer, part.name), name)
                if other != name:
                    raise ConfigError(f"{name} and {other} are both layer {part.layer} {part.name}: cannot be moved")
            layers[name] = LayerCache(name, at, parts)
    return CacheMap(groups_of(config), layers)


def _group(group: Any) -> Group:
    spec = _spec_of(group.kv_cache_spec, group.layer_names[0])
    kind = _kind(group.layer_names[0], spec)
    if not getattr(group, "enable_kv_transfer", True):
        raise ConfigError(f"{group.layer_names[0]}: vLLM says that its cache is not to be moved")
    window = spec.sliding_window - 1 if kind is PartKind.WINDOW else 0  # the next token is the window's last one
    positional = kind is not PartKind.STATE or spec.mamba_cache_mode != "none"
    return Group(kind, spec.block_size, window, positional)


def _spec_of(spec: Any, layer: str) -> Any:
    """A layer's own spec, where a group has one for each."""
    return spec.kv_cache_specs[layer] if hasattr(spec, "kv_cache_specs") else spec


def _kind(layer: str, spec: Any) -> PartKind:
    kind = _KINDS.get(type(spec).__name__)  # by its very class: a subclass may keep more than its base
    if kind is None:
        raise ConfigError(f"{layer}: {type(spec).__name__} cannot be moved; these can: {MOVABLE_WORDS}")
    if kind is PartKind.WINDOW and (spec.sliding_window < 2 or getattr(spec, "extra_retained_tokens", 0)):
        raise ConfigError(f"{layer}: a sliding window of {spec.sliding_window} that keeps more, or less, than itself")
    return kind


def _parts(name: str, spec: Any) -> Iterator[Part]:
    found = _LAYER.findall(name)
    if not found:
        raise ConfigError(f"{name}: no layer number in this name")
    layer, kind = int(found[0]), _kind(name, spec)
    if kind is PartKind.STATE:
        for (part, shape), dtype in zip(_named(spec), spec.dtypes, strict=True):
            yield Part(layer, part, kind, shape, _dtype(name, dtype))
        return
    _require_plain(name, spec)
    window = spec.sliding_window - 1 if kind is PartKind.WINDOW else 0
    dtype = _dtype(name, spec.dtype)
    if type(spec).__name__ == "MLAAttentionSpec":
        yield Part(layer, "kv", kind, (1, spec.head_size), dtype, sharded=False)
        return
    heads = spec.num_kv_heads
    for part, width in (("k", spec.head_size), ("v", spec.head_size_v)):
        yield Part(layer, part, kind, (heads, width), dtype, window)


def _whole(part: Part, ranks: int, said: int) -> Part:
    """`part` with the heads of all workers. A wrong guess of theirs makes another layout, which is refused."""
    if part.kind is PartKind.STATE or not part.sharded:
        return part
    here = part.shape[0]
    # With more workers than heads each has one of them, and only the model knows how many there are.
    total = said if here == 1 and 0 < said < ranks else here * ranks
    return replace(part, shape=(total, *part.shape[1:]), sharded=total > 1)


def _require_plain(name: str, spec: Any) -> None:
    """Raises ConfigError for rows that are not simply heads x width numbers of a known type."""
    mode = getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE")
    odd = mode if mode != "NONE" else ""
    odd = odd or ("packed rows" if getattr(spec, "state_content_bytes", None) is not None else "")
    odd = odd or ("shared head slots" if getattr(spec, "num_head_slots", None) is not None else "")
    odd = odd or ("compressed rows" if getattr(spec, "tokens_per_state", 1) != 1 else "")
    if odd:
        raise ConfigError(f"{name}: its cache has {odd}, which cannot be moved; expected --kv-cache-dtype auto")


def _named(spec: Any) -> Sequence[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a layer's states: convolutions come first, the recurrent state is the last one."""
    kind = getattr(spec.mamba_type, "name", str(spec.mamba_type)).upper()
    shapes = [tuple(int(size) for size in shape) for shape in spec.shapes]
    conv = len(shapes) if "CONV" in kind else 0 if kind.startswith("LINEAR") else len(shapes) - 1
    # Channels of several projections side by side: no heads to cut a convolution by.
    named = [(f"conv.{index}", (1, *shape)) for index, shape in enumerate(shapes[:conv])]
    return named + [(f"recurrent.{index}", shape) for index, shape in enumerate(shapes[conv:])]


def _dtype(name: str, dtype: Any) -> str:
    found = str(dtype).removeprefix("torch.")
    if found not in DTYPE_BYTES:
        raise ConfigError(f"{name}: its cache is {found}, expected one of {', '.join(DTYPE_BYTES)}")
    return found
