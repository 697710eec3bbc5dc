"""Role changes in a simulated PD cluster: `core/balance` looks, judges and tunes; here it is told and obeyed.

It knows which node has which name, what a conversion costs, and what came of it; it decides nothing. What a live system
would measure is told as it happens: each arrival, each answer's length, what lines carry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prfaas.core.balance.balancer import BalancePolicy, Balancer
from prfaas.core.balance.effects import (
    Abandoned,
    BalanceEffect,
    Convert,
    Drain,
    Judged,
    Resume,
    Retuned,
    Skipped,
)
from prfaas.core.balance.events import BalanceEvent, Converted, Drained, Staffed
from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import MINUTE_NS, Measured, Span
from prfaas.core.balance.rivals import Ratio
from prfaas.core.balance.rules import Predictive, Rule
from prfaas.core.balance.tuner import TuneEvent, TunePolicy, Tuner
from prfaas.core.ids import NodeName
from prfaas.core.machine import Pump
from prfaas.sim.decode import DecodeNode

if TYPE_CHECKING:
    from prfaas.sim.world import World

SLOTS = 15
"""Parts of the window that is looked back over; one is forgotten at a time."""

RULES: dict[str, Callable[[], Rule]] = {"ours": Predictive, "ratio": lambda: Ratio(band=0.2)}
"""By the name that scenarios and `--balance` have for them."""


@dataclass(frozen=True, slots=True)
class BalanceSetup:
    """`rule`: one of RULES. `cost_ns`: of a conversion, once the node is empty. `output`: tokens of an answer, until
    one has ended. `threshold`: tokens, until it is tuned."""

    rule: str
    every_ns: int
    window_ns: int
    cost_ns: int
    output: float
    threshold: int


@dataclass(slots=True)
class Step:
    """One conversion: decided at `at_ns` because of `judged`, empty at `drained_ns`, in its role at `done_ns`, -1 until
    then; or given up, because of `cause`."""

    at_ns: int
    node: str
    to: str
    judged: Judged
    drained_ns: int = -1
    done_ns: int = -1
    cause: str = ""


class Balance:
    """Of the world's one PD cluster. `steps`, `tuned` (time, what) and `looks` (why, how often) are its log; `staffs`:
    (time, prefill nodes, decode nodes), whenever they change."""

    def __init__(self, world: World, setup: BalanceSetup) -> None:
        (self.home,) = world.setup.homes
        self.world, self.setup = world, setup
        self.sources = world.sources(self.home)
        self.lines = [world.lines[at, self.home] for at in self.sources]
        nominal = tuple(float(line.uplink.nominal_bps or 0) for line in self.lines)
        span = Span(max(1, setup.window_ns // SLOTS), SLOTS)
        self.measured = Measured(nominal, setup.output, span)
        hardware = hardware_of(world, self.home, self.sources)
        policy = BalancePolicy(
            RULES[setup.rule](),
            period_ns=setup.every_ns,
            conversion_ns=setup.cost_ns,
            convert_ns=max(10 * MINUTE_NS, 2 * setup.cost_ns),
        )
        self.balancer = Balancer(policy, hardware, self.measured)
        self.tuner = Tuner(TunePolicy(period_ns=setup.every_ns), hardware, self.measured, setup.threshold)
        self._roles: Pump[BalanceEvent, BalanceEffect] = Pump(self.balancer, self._perform)
        self._tunes: Pump[TuneEvent, Retuned] = Pump(self.tuner, self._retuned)
        self._due_ns = -1
        self.steps: list[Step] = []
        self.tuned: list[tuple[int, Retuned]] = []
        self.looks: dict[str, int] = {}
        self.staffs: list[tuple[int, int, int]] = []
        self._judged: Judged
        pool, name = world.roles.pool(self.home), world.setup.clusters[self.home].name
        self._prefill = {NodeName(f"{name}-p{at}"): at for at in range(world.count(self.home))}
        self._decode: dict[NodeName, DecodeNode] = {NodeName(f"{name}-d{n}"): one for n, one in enumerate(pool.nodes)}
        self.staff(0)

    def staff(self, now_ns: int) -> None:
        """Nodes have come, gone or changed: who takes work now."""
        world, home = self.world, self.home
        for number in range(world.count(home)):
            if number not in self._prefill.values() and world.places(home, number)[0].up:
                self._prefill[self._named("p", number)] = number
        for number, node in enumerate(world.roles.pool(home).nodes):
            if node.up and not any(node is one for one in self._decode.values()):
                self._decode[self._named("d", number)] = node
        prefill = tuple(name for name, number in self._prefill.items() if world.places(home, number)[0].up)
        decode = tuple(name for name, node in self._decode.items() if node.up)
        self._post(now_ns, Staffed(prefill, decode, tuple(world.backlogs[at].nodes for at in self.sources)))

    def links(self, now_ns: int) -> None:
        """What lines have carried until now, which is about to change or to be read."""
        for number, line in enumerate(self.lines):
            self.measured.carried(now_ns, number, float(line.uplink.now_bps or 0))

    def _post(self, now_ns: int, event: BalanceEvent) -> None:
        self._roles.post(now_ns, event)
        self._after(now_ns)

    def _due(self, now_ns: int, _: Any) -> None:
        """A machine's timer."""
        self.links(now_ns)
        self._roles.run_due(now_ns)
        self._tunes.run_due(now_ns)
        self._due_ns = -1
        self._after(now_ns)

    def _after(self, now_ns: int) -> None:
        """Both machines know the same nodes; and the next timer is planned, while requests come."""
        one = self.balancer
        counts = (len(one.prefill), len(one.decode))
        if not self.staffs or self.staffs[-1][1:] != counts:
            self.staffs.append((now_ns, *counts))
        self._tunes.post(now_ns, Staffed(one.prefill, one.decode, one.remotes))
        soonest = min((at for at in (self._roles.next_at(), self._tunes.next_at()) if at is not None), default=None)
        if soonest is not None and soonest <= self.world.duration_ns and soonest != self._due_ns:
            self._due_ns = soonest
            self.world.later(soonest, self._due, None)

    def _perform(self, now_ns: int, effect: BalanceEffect) -> None:
        match effect:
            case Judged():
                self._count(effect.why)
                if effect.step:
                    self._judged = effect
            case Skipped():
                self._count(effect.why)
            case Drain(node, role):
                self.steps.append(Step(now_ns, node, "decode" if role == "prefill" else "prefill", self._judged))
                self._drain(now_ns, node, role)
            case Convert(node, role):
                self.world.later(now_ns + self.setup.cost_ns, self._come, (node, role))
            case Resume(node, role, cause):
                self.steps[-1].cause = cause
                self._resume(now_ns, node, role)
            case Abandoned(node, _, cause):
                self.steps[-1].cause = cause

    def _drain(self, now_ns: int, node: NodeName, role: str) -> None:
        def empty(now_ns: int) -> None:
            self.steps[-1].drained_ns = now_ns
            self._post(now_ns, Drained(node))

        if role == "prefill":
            self.world.roles.drain_prefill(now_ns, self.home, self._prefill[node], empty)
        else:
            self.world.roles.drain_decode(now_ns, self._decode[node], empty)

    def _resume(self, now_ns: int, node: NodeName, role: str) -> None:
        if role == "prefill":
            self.world.roles.resume_prefill(now_ns, self.home, self._prefill[node])
        else:
            self.world.roles.resume_decode(now_ns, self.home, self._decode[node])

    def _come(self, now_ns: int, what: tuple[NodeName, str]) -> None:
        """The conversion is paid for."""
        node, role = what
        if role == "prefill":
            del self._decode[node]
            self._prefill[node] = self.world.roles.join_prefill(now_ns, self.home)
        else:
            del self._prefill[node]
            self._decode[node] = self.world.roles.join_decode(now_ns, self.home)
        self.steps[-1].done_ns = now_ns
        self._post(now_ns, Converted(node))

    def _retuned(self, now_ns: int, effect: Retuned) -> None:
        self.tuned.append((now_ns, effect))
        policy = self.world.policy
        if hasattr(policy, "threshold"):
            policy.threshold = effect.tokens

    def _count(self, why: str) -> None:
        self.looks[why] = self.looks.get(why, 0) + 1

    def _named(self, role: str, number: int) -> NodeName:
        return NodeName(f"{self.world.setup.clusters[self.home].name}-{role}{number}")


def hardware_of(world: World, home: int, sources: tuple[int, ...]) -> Hardware:
    """What work costs in `world`, as `core/balance` asks for it."""
    one, kv_bytes = world.setup.clusters[home], world.setup.kv_bytes

    def seconds(at: int) -> Callable[[float, float], float]:
        cost = world.setup.clusters[at].prefill_ns

        def prefill_s(uncached: float, context: float) -> float:
            tokens = max(1, round(uncached))
            return cost(tokens, max(tokens, round(context))) / 1e9

        return prefill_s

    return Hardware(
        seconds(home),
        tuple(seconds(at) for at in sources),
        lambda output, context: output * one.step_ns(one.batch, round(context)) / one.batch / 1e9,
        lambda tokens: float(kv_bytes(round(tokens))),
    )
