"""How an engine keeps a cache, where engines differ for the same model.

It knows the differences by name; it does not know families or shapes. All engines keep, of a sliding window of `w`
tokens, what the next token can see: the last `w - 1` rows (vLLM and SGLang round that up to whole blocks; what must
cross a link is these rows). All keep MLA's latent, not the heads that it is expanded to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Convention:
    """`spare_columns`: what a convolution's state has beyond the `kernel - 1` inputs that the next token needs.
    `lightning_as_model`: Lightning attention's state has the model's dtype, not that of other recurrent states."""

    name: str
    spare_columns: int
    lightning_as_model: bool


SERVED = Convention("served", 0, False)
"""As vLLM 0.32 and SGLang 0.5.23 keep it, with float32 recurrent states. That is SGLang's default. vLLM's option for
it is `--mamba-ssm-cache-dtype float32`: its `auto` keeps Mamba, GDN and Lightning states in the model's dtype when the
config is silent."""

TRANSFORMERS = Convention("transformers", 1, True)
"""As transformers 5.24 keeps it: a convolution's state is as wide as its kernel."""
