"""The threshold rule: is a prompt long enough, uncached, to be worth a link? (paper, section 6; design, section 2)

It knows lengths and `t`. It does not know clusters' states, links or queues: those enter in placement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """`t`: uncached tokens above which prefill goes to a PrfaaS cluster."""

    tokens: int

    def offloads(self, prompt_tokens: int, cached_tokens: int = 0) -> bool:
        """Whether prompt minus usable prefix is above `t`. Exactly `t` stays."""
        return prompt_tokens - cached_tokens > self.tokens
