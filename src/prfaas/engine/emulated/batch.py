"""Continuous batching: one step for all sequences that decode, of the length that the profile says.

It knows the device, the profile and lanes; it does not know tokens: a lane advances itself.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from prfaas.engine.emulated.device import Device
from prfaas.model.profile import Profile
from prfaas.runtime.driver import loop_now_ns


class Lane(Protocol):
    """One sequence in decode."""

    @property
    def context(self) -> int:
        """Tokens that it attends to."""

    @property
    def factor(self) -> float:
        """How much slower than the profile it goes."""

    @property
    def held(self) -> bool:
        """Whether it takes part in no step now."""

    def advance(self) -> None:
        """A step is done: a token more."""

    def break_off(self, why: Exception) -> None:
        """There will be no more steps."""


class Batch:
    """The sequences in decode. The stepper runs as long as there are any that are not held."""

    def __init__(self, device: Device, profile: Profile, time_scale: float) -> None:
        self._device, self._profile, self._time_scale = device, profile, time_scale
        self._lanes: list[Lane] = []
        self._stepper: asyncio.Task[None] | None = None

    def join(self, lane: Lane) -> None:
        """From the next step on."""
        self._lanes.append(lane)
        self.kick()

    def leave(self, lane: Lane) -> None:
        """Harmless when it has left."""
        if lane in self._lanes:
            self._lanes.remove(lane)

    def kick(self) -> None:
        """A lane may step that could not before."""
        if self._stepper is None:
            self._stepper = asyncio.get_running_loop().create_task(self._steps(), name="decode steps")

    async def close(self, why: Exception) -> None:
        """Break off all lanes. The device is closed already."""
        if self._stepper is not None:
            await asyncio.wait([self._stepper])
        for lane in self._lanes:
            lane.break_off(why)

    async def _steps(self) -> None:
        ready_ns = loop_now_ns()
        try:
            while self._ready():
                async with self._device.turn(ready_ns, None) as start_ns:
                    if not (ready := self._ready()):  # they left while it waited for its turn
                        break
                    context = sum(lane.context for lane in ready) // len(ready)
                    step_ns = self._profile.decode_step_ns(len(ready), context)
                    ready_ns = start_ns + int(step_ns * self._time_scale * max(lane.factor for lane in ready))
                    self._device.works_until(ready_ns)
                    await self._device.until(ready_ns)
                for lane in ready:
                    if lane in self._lanes:
                        lane.advance()
                await asyncio.sleep(0)
        except Exception as error:
            for lane in self._lanes:
                lane.break_off(error)
        finally:
            self._stepper = None

    def _ready(self) -> list[Lane]:
        return [lane for lane in self._lanes if not lane.held]
