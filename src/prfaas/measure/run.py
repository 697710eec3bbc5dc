"""The run: every probe that is wanted and not in the journal yet, one after the other.

It knows what to ask to time a prefill or a decode step, and when to stop growing; it does not know HTTP, nor how
samples make a profile. Prefill: the time to the first token of an answer of one. Decode: the time between tokens while
all sequences decode, from the last one's first token on; then it hangs up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from prfaas.config.echo import one_line
from prfaas.core.errors import PeerFailure, ProtocolError
from prfaas.measure.ask import Endpoint, Heard
from prfaas.measure.prompts import Prompts
from prfaas.measure.samples import Journal, Probe, Sample, Settings, Stop, probes
from prfaas.measure.together import step_of
from prfaas.runtime.client import Refused

FIRST_WORDS = (200, 400)
"""Of the two prompts that tell how many tokens a word has; the endpoint warms up with them."""
TOO_MUCH = (400, 413, 422)
"""HTTP statuses of a request that is too large for an endpoint."""
BUSY = (429, 503, 507)
"""Of one that it has no room for now."""
SPARE_TOKENS = 32
GUESSED_STEP_NS = 2_000_000

Tell = Callable[[Probe, int], None]
Show = Callable[[Probe, list[int], str], None]


class Unable(Exception):
    """A probe that cannot work, nor any that asks for more."""


class Measuring:
    """One run against `endpoint`, kept in `journal`. `begun(probe, repeat)` is called before each sample,
    `settled(probe, times, why)` when a probe is over, `why` telling why it is not measured, if so.
    """

    def __init__(
        self, endpoint: Endpoint, settings: Settings, journal: Journal, prompts: Prompts, begun: Tell, settled: Show
    ) -> None:
        self._endpoint, self._settings, self._journal = endpoint, settings, journal
        self._prompts, self._begun, self._settled = prompts, begun, settled
        self._prefixes: dict[int, str] = {}

    async def run(self) -> None:
        """Until all is measured. Raises RemoteError when the endpoint fails in a way that is no limit of its."""
        pending = [probe for probe in probes(self._settings) if self._left(probe)]
        if not pending:
            return
        await self._calibrate()
        for probe in pending:
            if self._left(probe):
                await self._measure(probe)

    def _left(self, probe: Probe) -> range:
        """Which repeats of a probe are still to do."""
        if any(probe.beyond(stop.probe) for stop in self._journal.stops):
            return range(0)
        return range(sum(sample.probe == probe for sample in self._journal.samples), self._settings.repeats)

    async def _calibrate(self) -> None:
        counts = []
        for words in FIRST_WORDS:
            heard = await self._endpoint.hear(self._prompts.words(words), 1)
            counts.append(heard.prompt or 0)
        if counts[1] <= counts[0]:
            raise ProtocolError("bad_reply", f"{counts[1]} tokens of twice the text that has {counts[0]}")
        self._prompts.calibrate(FIRST_WORDS, (counts[0], counts[1]))

    async def _measure(self, probe: Probe) -> None:
        why = ""
        for repeat in self._left(probe):
            self._begun(probe, repeat)
            try:
                of, over, ns = await (self._prefill(probe) if probe.what == "prefill" else self._decode(probe))
            except (Unable, PeerFailure) as error:
                why = self._limit(probe, error)
                self._journal.add(Stop(probe.what, probe.x, probe.y, why))
                break
            self._journal.add(Sample(probe.what, probe.x, probe.y, repeat, of, over, ns))
        self._settled(probe, [sample.ns for sample in self._journal.samples if sample.probe == probe], why)

    def _limit(self, probe: Probe, error: Unable | PeerFailure) -> str:
        """Why a probe that failed shows a limit of the endpoint. Raises the error if it shows none."""
        if isinstance(error, Unable):
            return str(error)
        smaller = any(
            sample.what == probe.what or (sample.what == "prefill" and sample.x >= probe.y and probe.what == "decode")
            for sample in self._journal.samples
        )
        if isinstance(error, Refused) and smaller:
            if error.status in TOO_MUCH or (error.status in BUSY and probe.what == "decode" and probe.x > 1):
                return f"HTTP {error.status}: {one_line(error.detail)}"
        elif error.code == "timeout" and smaller:
            return one_line(error.detail)
        raise error

    async def _prefill(self, probe: Probe) -> tuple[int, int, int]:
        if probe.y:
            prompt = await self._prefix(probe.y) + self._prompts.more(probe.x)
        else:
            prompt = self._prompts.of_tokens(probe.x)
        heard = await self._endpoint.hear(prompt, 1)
        if heard.first_ns is None or heard.prompt is None:
            raise ProtocolError("bad_reply", "an answer of one token had none")
        cached = heard.cached or 0
        if probe.y and cached < probe.y // 2:
            said = "does not say how many tokens were cached" if heard.cached is None else f"had {cached} cached"
            raise Unable(f"the endpoint {said}, of a prefix of {probe.y} that it had just seen")
        return heard.prompt - cached, cached, heard.first_ns - heard.sent_ns

    async def _prefix(self, tokens: int) -> str:
        """A prompt of about that many tokens, which the endpoint has computed."""
        if tokens not in self._prefixes:
            prefix = self._prompts.of_tokens(tokens)
            await self._endpoint.hear(prefix, 1)
            self._prefixes[tokens] = prefix
        return self._prefixes[tokens]

    async def _decode(self, probe: Probe) -> tuple[int, int, int]:
        answer, context = self._answer(probe), self._prompts.expected(probe.y)

        def hear(heard: Heard, moved: Callable[[], None]) -> Coroutine[Any, Any, Heard]:
            return self._endpoint.hear(next(prompts), answer, heard, moved)

        prompts = await self._many(probe)
        found = await step_of(probe.x, self._settings.steps, hear)
        if found is None:
            # Prefills took longer than thought: the first had ended before the last began.
            answer = self._fitting(probe, 4 * answer)
            prompts = await self._many(probe)
            found = await step_of(probe.x, self._settings.steps, hear)
        if found is None:
            raise Unable("not all decoded at once: the endpoint runs fewer, or ends answers early")
        ns, made = found
        return probe.x, context + made, ns

    async def _many(self, probe: Probe) -> Iterator[str]:
        """The prompts of a batch, made before the first is sent; an interruption is heard between two of them."""
        made = []
        for _ in range(probe.x):
            made.append(self._prompts.of_tokens(probe.y))
            await asyncio.sleep(0)
        return iter(made)

    def _answer(self, probe: Probe) -> int:
        """Tokens that an answer must have so that the first is not over before the last has begun."""
        samples = self._journal.samples
        prefills = sorted((one.of, one.ns) for one in samples if one.what == "prefill" and one.over == 0)
        longer = [ns for of, ns in prefills if of >= probe.y * 9 // 10]
        prefill_ns = min(longer) if longer else prefills[-1][1] if prefills else 0
        steps = [one.ns for one in samples if one.what == "decode" and one.y == probe.y]
        waiting = probe.x * prefill_ns // min(steps, default=GUESSED_STEP_NS) if probe.x > 1 else 0
        return self._fitting(probe, self._settings.steps + 2 * waiting + SPARE_TOKENS)

    def _fitting(self, probe: Probe, tokens: int) -> int:
        longest = self._endpoint.served.longest
        return tokens if longest is None else max(1, min(tokens, longest - probe.y * 17 // 16 - SPARE_TOKENS))
