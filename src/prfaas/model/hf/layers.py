"""Which layer is of which kind, in the ways that configs say it.

It knows the lists, patterns and intervals; it does not know what a kind's cache looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prfaas.model.hf.config import MAX_LAYERS, Config

FULL, WINDOW, LINEAR, CONV, BOTH, NONE = "full_attention", "sliding_attention", "linear_attention", "conv", "hybrid", ""
_NAMES = {kind: kind for kind in (FULL, WINDOW, LINEAR, CONV, BOTH)} | {
    "attention": FULL,
    "mamba": LINEAR,
    "mamba2": LINEAR,
    "short_conv": CONV,
    "moe": NONE,
    "mlp": NONE,
}
_LETTERS = {"M": LINEAR, "*": FULL, "-": NONE, "E": NONE}


def listed(config: Config, name: str, kinds: Sequence[str]) -> list[str] | None:
    """The kind of each layer as the list `name` says, which may hold `kinds`; None when it is not set."""
    said = config.texts(name)
    if said is None:
        return None
    allowed = [word for word, kind in _NAMES.items() if kind in kinds]
    if not said or any(word not in allowed for word in said):
        raise config.wrong(name, f"a list of {', '.join(allowed)}")
    if config.has("num_hidden_layers") and len(said) != config.layer_count():
        raise config.wrong(name, f"{config.layer_count()} of them, as many as `num_hidden_layers` says")
    return [_NAMES[word] for word in said]


def lettered(config: Config, name: str) -> list[str] | None:
    """The kind of each layer as a pattern such as `M-M*` says: Mamba, attention, neither; None when it is not set."""
    said = config.text(name)
    if not said:
        return None
    if not set(said) <= set(_LETTERS) or len(said) > MAX_LAYERS:
        raise config.wrong(name, f"a pattern of {' '.join(_LETTERS)}")
    if config.has("num_hidden_layers") and len(said) != config.layer_count():
        raise config.wrong(name, f"{config.layer_count()} letters, as many as `num_hidden_layers` says")
    return [_LETTERS[letter] for letter in said]


def coded(config: Config, name: str, zero: str, one: str) -> list[str] | None:
    """The kind of each layer as a list of 0 and 1 says; None when it is not set."""
    said = config.integers(name)
    if said is None:
        return None
    if any(code not in (0, 1) for code in said) or len(said) != config.layer_count():
        raise config.wrong(name, f"{config.layer_count()} times 0 or 1, as many as `num_hidden_layers` says")
    return [one if code else zero for code in said]


def placed(config: Config, indices: Sequence[int], at: str, others: str) -> list[str]:
    """`at` for the layers in `indices`, from 0, and `others` for the rest."""
    return [at if layer in indices else others for layer in range(config.layer_count())]


def every(config: Config, rule: Callable[[int], bool], when: str, others: str) -> list[str]:
    """`when` for the layers, counted from 0, that `rule` holds for, and `others` for the rest."""
    return [when if rule(layer) else others for layer in range(config.layer_count())]
