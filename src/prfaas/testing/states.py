"""`docs/states.md`, printed from the tables that run: `python -m prfaas.testing.states > docs/states.md`.

It knows which machines there are and how to print a table; it does not know what the states mean.
"""

from __future__ import annotations

from prfaas.core.membership.member import Member
from prfaas.core.routing.request import RequestLife
from prfaas.core.table import Row, Table
from prfaas.core.transfer.receiver import Receiver
from prfaas.core.transfer.sender import Sender

MACHINES: tuple[tuple[Table, str], ...] = (
    (RequestLife.TABLE, "one client request, as the router sees it (`core/routing/request.py`)"),
    (Receiver.table, "the decode side of one KV transfer (`core/transfer/receiver.py`)"),
    (Sender.table, "the prefill side of one KV transfer (`core/transfer/sender.py`)"),
    (Member.TABLE, "one node of a cluster, as the cluster's head sees it (`core/membership/member.py`)"),
)

HEAD = """# States

Printed from the tables that run, by `python -m prfaas.testing.states`; a test compares. An event that a state has no
row for is a bug, and raises. `=` means that the state stays; several states mean that the handler decides.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_machine(table, what) for table, what in MACHINES)])


def _machine(table: Table, what: str) -> str:
    lines = [f"## {table.name}", "", f"{what[0].upper()}{what[1:]}.", "", "| state | |", "|---|---|"]
    for state in table.states:
        notes = [note for note, is_so in (("start", state is table.start), ("end", state in table.ends)) if is_so]
        text = state.value if isinstance(state.value, str) else ""
        lines.append(f"| {state.name} | {'; '.join([*notes, *([text] if text else [])])} |")
    lines += ["", "| state | event | to | why |", "|---|---|---|---|"]
    for state in table.states:
        rows = [row for (at, _), row in table.rows.items() if at is state]
        for row in sorted(rows, key=lambda row: row.event.__name__):
            lines.append(f"| {state.name} | {row.event.__name__} | {_targets(row)} | {row.why} |")
    return "\n".join([*lines, ""])


def _targets(row: Row) -> str:
    names = ["=" if state is row.state else state.name for state in row.to]
    return ", ".join(dict.fromkeys(names)) or "raises"


if __name__ == "__main__":
    print(document(), end="")
