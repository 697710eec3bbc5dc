"""Landing credit: bytes of host memory promised to KV that will arrive, so that no prefill waits for a decode's room.

It knows transfers, bytes and leases; it does not know what lands. A credit is granted (its lease runs), used (a receive
holds it), or gone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prfaas.core.errors import RequestError
from prfaas.core.ids import TransferId
from prfaas.engine.node.line import Line


@dataclass(slots=True)
class _Credit:
    kv_bytes: int
    lease: asyncio.TimerHandle | None = None
    used: bool = False


class Credits:
    """The landing buffer of one node, `capacity_bytes` in all."""

    def __init__(self, capacity_bytes: int, max_waiting: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._line = Line("landing credit", max_waiting)
        self._held: dict[TransferId, _Credit] = {}
        self._asking: set[TransferId] = set()
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """Bytes promised or in use."""
        return self._taken_bytes

    @property
    def unused(self) -> int:
        """Credits that are granted and not used yet."""
        return sum(not credit.used for credit in self._held.values())

    async def grant(self, transfer: TransferId, kv_bytes: int, lease_s: float) -> None:
        """Waits for room, at most as long as the lease that is asked for; asking again renews the lease.

        Raises RequestError: 413 when it can never fit, 409 when `transfer` is in use, 503 when no room came in time.
        """
        try:
            async with asyncio.timeout(lease_s):
                credit = await self._take(transfer, kv_bytes)
        except TimeoutError:
            free = self.capacity_bytes - self._taken_bytes
            raise RequestError(
                f"the transfer needs {kv_bytes} bytes of the landing buffer, {free} of {self.capacity_bytes} are free",
                status=503,
                kind="server_error",
                code="no_landing_credit",
                retry_after_s=1,
            ) from None
        if credit.lease is not None:
            credit.lease.cancel()
        credit.lease = asyncio.get_running_loop().call_later(lease_s, self._lease_ended, transfer, credit)

    async def use(self, transfer: TransferId, kv_bytes: int) -> None:
        """Use what was granted, or else wait for room now. Held until `release`. Raises like `grant`, but for 503."""
        granted = self._held.get(transfer)
        if granted is not None and not granted.used and granted.kv_bytes != kv_bytes:
            self._drop(transfer)
        credit = await self._take(transfer, kv_bytes)
        if credit.lease is not None:
            credit.lease.cancel()
        credit.used, credit.lease = True, None

    def release(self, transfer: TransferId) -> None:
        """The bytes are free again. Harmless when there is no such credit."""
        self._drop(transfer)

    def give_up(self, transfer: TransferId) -> None:
        """The asker does not want it any more: it is gone unless a receive uses it, which ends by itself."""
        credit = self._held.get(transfer)
        if credit is not None and not credit.used:
            self._drop(transfer)

    def close(self) -> None:
        """End all leases."""
        for transfer in list(self._held):
            self._drop(transfer)

    async def _take(self, transfer: TransferId, kv_bytes: int) -> _Credit:
        credit = self._held.get(transfer)
        if (credit is not None and credit.used) or transfer in self._asking:
            raise RequestError(f"transfer {transfer} is in hand already", status=409, code="duplicate_transfer")
        if credit is not None:
            return credit
        if kv_bytes > self.capacity_bytes:
            raise RequestError(
                f"the transfer needs {kv_bytes} bytes, this node's landing buffer has {self.capacity_bytes}",
                status=413,
                code="landing_buffer_exceeded",
            )

        def take() -> bool:
            if self._taken_bytes + kv_bytes > self.capacity_bytes:
                return False
            self._held[transfer] = _Credit(kv_bytes)
            self._taken_bytes += kv_bytes
            return True

        self._asking.add(transfer)
        try:
            await self._line.wait(take, lambda: self._drop(transfer))
        finally:
            self._asking.discard(transfer)
        taken = self._held.get(transfer)
        if taken is None:  # given up between the grant and this waiter's turn
            raise RequestError(f"transfer {transfer} was given up", status=409, code="given_up")
        return taken

    def _lease_ended(self, transfer: TransferId, credit: _Credit) -> None:
        if self._held.get(transfer) is credit and not credit.used:
            self._drop(transfer)

    def _drop(self, transfer: TransferId) -> None:
        credit = self._held.pop(transfer, None)
        if credit is not None:
            if credit.lease is not None:
                credit.lease.cancel()
            self._taken_bytes -= credit.kv_bytes
        self._line.move()
