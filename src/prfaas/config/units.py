"""Quantities with units, as people write them: `20ms`, `1Gbps`, `2GiB`, `127.0.0.1:8000`.

It knows how text becomes an integer and back; it does not know which setting is read. Each type is an `int` (or, for an
address, a `str`) so that the rest of the program uses it as one. Errors are ValueError: `got ...; expected ...`.
"""

from __future__ import annotations

import ipaddress
import re
from decimal import Decimal
from typing import ClassVar, Self

from prfaas.config.echo import cut

_TEXT = re.compile(r"([+-]?)(\d{1,20}(?:\.\d{1,12})?) ?([A-Za-zµ]+)", re.ASCII)
_MOST = 2**62


class Quantity(int):
    """A whole number of base units, at least `LEAST`. Subclasses name the units, smallest first."""

    UNITS: ClassVar[dict[str, int]] = {}
    WHAT: ClassVar[str] = ""
    LEAST: ClassVar[int] = 0

    @classmethod
    def expected(cls) -> str:
        """What a value must look like, for an error or a schema."""
        return f"{cls.WHAT} with a unit ({', '.join(cls.UNITS)})"

    @classmethod
    def pattern(cls) -> str:
        """A regular expression for JSON Schema; `parse` is stricter by the range."""
        return rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(cls.UNITS)})$"

    @classmethod
    def parse(cls, value: object) -> Self:
        """The quantity that `value`, a text with a unit, stands for. Raises ValueError."""
        match = _TEXT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[3] not in cls.UNITS:
            raise ValueError(f"got {cut(repr(value))}; expected {cls.expected()}")
        amount = Decimal(match[2]) * cls.UNITS[match[3]]
        if match[1] == "-" and amount:
            raise ValueError(f"got {cut(repr(value))}, which is negative; expected {cls.expected()}")
        if amount != int(amount):
            raise ValueError(f"got {cut(repr(value))}; expected a whole number of {next(iter(cls.UNITS))}")
        if int(amount) < cls.LEAST:
            raise ValueError(f"got {cut(repr(value))}; expected more than zero")
        if amount > _MOST:
            raise ValueError(f"got {cut(repr(value))}, which is too large; expected at most {cls(_MOST).text()}")
        return cls(int(amount))

    def text(self) -> str:
        """The shortest exact way to write it: the largest unit that divides it."""
        units = [(name, size) for name, size in self.UNITS.items() if self and self % size == 0]
        name, size = max(units, key=lambda unit: unit[1], default=next(iter(self.UNITS.items())))
        return f"{self // size}{name}"


class Duration(Quantity):
    """Nanoseconds, zero allowed."""

    UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}  # noqa: RUF012
    WHAT = "a duration"


class Timeout(Duration):
    """Nanoseconds, more than zero."""

    LEAST = 1


class Bandwidth(Quantity):
    """Bits a second, more than zero. Decimal units, as links are sold."""

    UNITS = {"bps": 1, "kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}  # noqa: RUF012
    WHAT = "a bandwidth in bits a second"
    LEAST = 1


class Size(Quantity):
    """Bytes, more than zero."""

    UNITS = {  # noqa: RUF012
        "B": 1,
        "kB": 10**3,
        "KiB": 2**10,
        "MB": 10**6,
        "MiB": 2**20,
        "GB": 10**9,
        "GiB": 2**30,
        "TB": 10**12,
        "TiB": 2**40,
    }
    WHAT = "a size in bytes"
    LEAST = 1


class Endpoint(str):
    """`host:port` of a listener; IPv6 hosts in brackets."""

    __slots__ = ()

    EXPECTED: ClassVar[str] = "host:port such as 127.0.0.1:8000 or [::1]:8000"
    PATTERN: ClassVar[str] = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"

    @classmethod
    def parse(cls, value: object) -> Self:
        """The endpoint that `value` names. Raises ValueError."""
        if not isinstance(value, str) or not re.fullmatch(cls.PATTERN, value, re.ASCII):
            raise ValueError(f"got {cut(repr(value))}; expected {cls.EXPECTED}")
        made = cls(value)
        if not 1 <= made.port <= 65535:
            raise ValueError(f"got {cut(repr(value))}; expected a port from 1 to 65535")
        if value.startswith("["):
            try:
                ipaddress.IPv6Address(made.host)
            except ValueError:
                raise ValueError(f"got {cut(repr(value))}; expected {cls.EXPECTED}") from None
        return made

    @classmethod
    def at(cls, host: str, port: int) -> Self:
        """The endpoint of `host` and `port`."""
        return cls(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.rpartition(":")[2])

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def wildcard(self) -> bool:
        """Whether it means every interface, so that peers need another name to dial."""
        return self.host in ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
