"""KV that landed, beside the prefix that was kept: what of each part comes from where, and whether the two fit.

It knows lengths, layouts and pieces by name; it does not know tensors or bytes.
"""

from __future__ import annotations

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import InvariantError
from prfaas.engine.reuse import Reuse
from prfaas.transport.base import LandedKV


def check(layout: KVLayout, length: int, landed: LandedKV, reuse: Reuse) -> None:
    """Raises InvariantError unless `landed` and what `reuse` resumes from make the KV of `length` tokens together."""
    if landed.length != length:
        raise InvariantError(f"landed KV is of {landed.length} tokens, the prompt needs {length}")
    if landed.held != reuse.tokens:
        raise InvariantError(f"landed KV builds on {landed.held} tokens, of which {reuse.tokens} are kept")
    if landed.held and not reuse.state:
        for part in layout.parts:
            if part.kind is PartKind.WINDOW and part.first_row(length) < landed.held:
                where = f"layer {part.layer} {part.name}"
                raise InvariantError(f"{where}: the window's rows before {landed.held} neither landed nor are kept")


def kept_rows(part: Part, landed: LandedKV) -> range:
    """Rows of `part` that come from what is kept; the others landed, as a state always does."""
    if part.kind is PartKind.STATE:
        return range(0)
    return range(min(part.first_row(landed.length), landed.held), landed.held)
