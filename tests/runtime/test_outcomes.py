"""What peers say does not make time series without end."""

from __future__ import annotations

import re
from pathlib import Path

from prfaas.core.ids import LinkName
from prfaas.core.routing import copying
from prfaas.engine.node.counted import PrefixMetrics
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.outcomes import KNOWN, OTHER, label
from prfaas.transport.base import Outcome
from prfaas.transport.metrics import MetricStats

WIRE = Path(__file__).parents[2] / "docs" / "wire.md"


def test_codes_of_the_wire_format_and_of_decisions_are_themselves() -> None:
    """All that `docs/wire.md` lists, and what decisions say of copies."""
    table = WIRE.read_text().split("## Codes")[1].split("\n## ")[0]
    codes = [code for row in table.splitlines() if row.startswith("| `") for code in re.findall(r"`(\w+)`", row)]
    assert len(codes) > 15
    reasons = [copying.COPY, copying.SLOWER, copying.BUSY, copying.UNKNOWN, copying.CANNOT, copying.NO_LINK]
    for word in (*codes, *reasons, "ok", "held", "late", "no_room", "useless", "applied"):
        assert label(word) == word
    assert OTHER not in KNOWN


def test_words_of_peers_that_nobody_knows_are_one_series() -> None:
    metrics = Metrics()
    counted, stats = PrefixMetrics(metrics.registry, "m"), MetricStats(metrics)
    for number in range(50):
        word = f"w{number}"
        metrics.longer_prefix(word)
        counted.copied("lent", word)
        stats.ended(LinkName("l"), "sending", Outcome(word, "", 0, 0))
    for name, labels in (
        ("prfaas_longer_prefixes_total", {"outcome": OTHER}),
        ("prfaas_prefix_copies_total", {"side": "lent", "outcome": OTHER}),
        ("prfaas_transfers_ended_total", {"link": "l", "side": "sending", "cause": OTHER}),
    ):
        assert metrics.registry.get_sample_value(name, labels) == 50
    assert b'"w' not in metrics.text()
