"""The paper's rule, to be compared with: prefill and decode rates side by side (eq. 8; section 3.4.3 as far as given).

It knows what `rules` knows. The paper says that one compares and converts; how often, and from which ratio on, it does
not say.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.balance.effects import Judged, Why
from prfaas.core.balance.outlook import Outlook
from prfaas.core.balance.rules import Limits, judged


@dataclass(frozen=True, slots=True)
class Ratio:
    """Theta_prfaas + Theta_pd_p below Theta_pd_d: a decode node becomes a prefill node; above: the reverse. Only when
    the larger is more than `1 + band` times the smaller."""

    band: float = 0.0
    name: str = "ratio"

    def judge(self, outlook: Outlook, n_p: int, n_d: int, limits: Limits, conversion_ns: int) -> Judged:
        """See Rule."""
        prefill, decode = sum(outlook.thetas(n_p)), outlook.decode(n_d)
        step = (prefill < decode) - (prefill > decode)
        low, high = sorted((prefill, decode))
        apart = high / low - 1 if low > 0 else float(high > 0)
        why: Why = "better"
        if not step:
            why = "best"
        elif apart <= self.band:
            why = "margin"
        elif not limits.prefill <= n_p + step <= n_p + n_d - limits.decode:
            why = "minimum"
        after = outlook.rate(n_p + step, n_d - step) if why != "minimum" else outlook.rate(n_p, n_d)
        taken = step if why == "better" else 0
        return judged(self.name, outlook, n_p, n_d, taken, n_p + taken, why, after, apart, self.band)
