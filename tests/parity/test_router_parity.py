"""One scenario, two drivers: the virtual-time driver and asyncio must give the same decision log, to the nanosecond."""

from __future__ import annotations

import asyncio

from prfaas.core.routing.effects import Ended, RequestEffect
from prfaas.core.routing.router import RouterEvent
from prfaas.runtime.driver import Driver
from prfaas.testing.clock import run_virtual
from prfaas.testing.scenario import MS, World, busy_minute, router
from prfaas.testing.virtual import VirtualDriver

END_NS = 120_000 * MS


def in_virtual_time() -> World:
    steps, world = busy_minute()
    machine = router()
    driver: VirtualDriver[RouterEvent, RequestEffect] = VirtualDriver(machine, lambda now, effect: act(now, effect))
    act = world.perform(driver)
    for step in steps:
        driver.later(step.at_ns, step.event)
    driver.run(END_NS)
    machine.validate()
    assert not machine.requests
    return world


def in_asyncio() -> World:
    steps, world = busy_minute()
    machine = router()

    async def main() -> None:
        driver: Driver[RouterEvent, RequestEffect] = Driver(machine, lambda now, effect: act(now, effect))
        act = world.perform(driver)
        for step in steps:
            driver.later(step.at_ns, step.event)
        await asyncio.sleep(END_NS / 1e9)
        driver.close()

    run_virtual(main())
    machine.validate()
    assert not machine.requests
    return world


def test_both_drivers_give_the_same_log() -> None:
    one, other = in_virtual_time(), in_asyncio()
    assert one.decisions() == other.decisions()
    assert one.log == other.log


def test_the_scenario_is_rich_enough_to_tell_drivers_apart() -> None:
    world = in_virtual_time()
    reasons = {d.reason for d in world.decisions()}
    assert {"long", "short", "single", "unreachable", "retry", "no_landing_room"} <= reasons
    outcomes = {effect.outcome for _, effect in world.log if isinstance(effect, Ended)}
    assert {"ok", "refused", "gone"} <= outcomes
    assert sum(isinstance(effect, Ended) for _, effect in world.log) == 40
