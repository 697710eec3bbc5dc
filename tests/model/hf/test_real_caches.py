"""The proof: a tiny model of each family computes a prompt, and its cache weighs what its config.json says it does.

The caches are transformers', so the layouts are asked for as transformers keeps them; how what serves differs is
`Convention`, and the last test says exactly how much that is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.model.hf.tinyfamilies import FAMILIES, WINDOW, config_of

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.model.hf.convention import TRANSFORMERS
from prfaas.model.hf.load import load_layout

pytestmark = pytest.mark.slow
LENGTHS = (2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)
"""Below the window (and below a convolution's kernel), around it, and above."""


def kept(cache: Any) -> Counter[tuple[int, str]]:
    """Bytes of a transformers cache by layer and kind: rows, window, conv, recurrent."""
    found: Counter[tuple[int, str]] = Counter()
    for index, layer in enumerate(cache.layers):
        for name in ("keys", "values"):
            if (tensor := getattr(layer, name, None)) is not None:
                found[index, "window" if layer.is_sliding else "rows"] += tensor.nbytes
        for kind in ("conv", "recurrent"):
            for tensor in getattr(layer, f"{kind}_states", {}).values():
                found[index, kind] += 0 if tensor is None else tensor.nbytes
    for index, tensor in enumerate(getattr(cache, "linear_cache", ())):  # MiniMax has a cache of its own
        found[index, "recurrent"] += tensor.nbytes if len(tensor) else 0
    return +found


def computed(layout: KVLayout, length: int) -> Counter[tuple[int, str]]:
    """The same as a layout says it."""
    found: Counter[tuple[int, str]] = Counter()
    for part in layout.parts:
        kind = {PartKind.TOKENS: "rows", PartKind.WINDOW: "window"}.get(part.kind) or part.name.partition("_")[0]
        found[part.layer, kind] += part.bytes_at(length)
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Such small tensors are not worth a second thread, which on a busy machine is waited for."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The directory of a config.json, and the model with random weights that transformers makes of it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    directory = tmp_path_factory.mktemp("family")
    (directory / "config.json").write_text(json.dumps(config_of(request.param), indent=1))
    config = AutoConfig.from_pretrained(directory)
    dtype = getattr(torch, config_of(request.param)["dtype"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return directory, AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def test_the_cache_weighs_what_the_config_says(family: tuple[Path, Any]) -> None:
    import torch
    from transformers import DynamicCache

    directory, model = family
    layout = load_layout(str(directory), convention=TRANSFORMERS)
    for length in LENGTHS:
        own = model.config.model_type == "minimax"
        cache = None if own else DynamicCache(config=model.config)
        with torch.no_grad():
            out = model(torch.arange(length)[None] % 60 + 3, cache=cache, use_cache=True)
            assert kept(out.cache) == computed(layout, length), length
            model(torch.tensor([[5]]), cache=out.cache, use_cache=True)  # a decode step grows it as much
        assert kept(out.cache) == computed(layout, length + 1), length


def test_what_serves_keeps_one_column_less_of_each_convolution(family: tuple[Path, Any]) -> None:
    directory, model = family
    ours, theirs = load_layout(str(directory)), load_layout(str(directory), convention=TRANSFORMERS)
    for part, other in zip(ours.parts, theirs.parts, strict=True):
        if part.name.startswith("conv"):
            assert (*part.shape[:-1], part.shape[-1] + 1) == other.shape
        elif part.name == "recurrent" and model.config.model_type == "minimax":
            assert (part.shape, part.dtype, other.dtype) == (other.shape, "float32", "bfloat16")
        else:
            assert part == other
