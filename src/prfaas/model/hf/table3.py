"""KV throughput that the PrfaaS paper measured, and the prefill time that it implies.

Source: Qin et al., arXiv 2604.15039, Tables 1 and 3: phi_kv in Gbps of one instance of 8 H200 under SGLang 0.5.9. The
paper prints neither the bytes nor the times; with the bytes that a config gives, Eq. 1 gives the times. It knows these
figures; it does not know other measurements of the same models.
"""

from __future__ import annotations

from prfaas.core.errors import ConfigError
from prfaas.model.hf.load import load_layout

LENGTHS = (1024, 8192, 32768, 131072)
"""Tokens, of Table 3's rows."""

PHI_KV_GBPS: dict[str, tuple[float, float, float, float]] = {
    "Kimi-Linear-48B-A3B": (1.19, 2.29, 3.87, 4.88),
    "MiMo-V2-Flash": (0.82, 2.85, 4.66, 4.71),
    "Qwen3.5-397B-A17B": (4.13, 6.28, 8.25, 7.47),
    "Ring-2.5-1T": (7.27, 4.47, 2.59, 1.46),
    "MiniMax-M2.5": (4.94, 32.87, 59.93, 47.82),
    "Qwen3-235B-A22B": (4.12, 22.42, 33.35, 21.50),
}
"""Known model -> phi_kv at `LENGTHS`, 10^9 bits a second."""


def implied_prefill_s(model: str, length: int, kv_dtype: str | None = None) -> float:
    """T_prefill = S_kv / phi_kv (Eq. 1), seconds, at one of `LENGTHS`. Raises ConfigError for what the table lacks.

    It assumes the bytes that `load_layout` gives; a cache kept in FP8 would halve attention's share.
    """
    if model not in PHI_KV_GBPS or length not in LENGTHS:
        raise ConfigError(
            f"Table 3: got {model} at {length}; expected one of {', '.join(PHI_KV_GBPS)} at one of"
            f" {', '.join(map(str, LENGTHS))}"
        )
    phi_bits = PHI_KV_GBPS[model][LENGTHS.index(length)] * 1e9
    return load_layout(model, kv_dtype).bytes_at(length) * 8 / phi_bits
