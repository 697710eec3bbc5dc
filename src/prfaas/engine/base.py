"""The seam between a node and what computes in it.

It knows sequences, extents and tokens. It does not know HTTP, sockets or clusters, nor whether there is room: the
node server admits by `core.cache.pool` before it calls. `transformers` and `emulated` engines implement it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from prfaas.core.cache.layout import KVLayout
from prfaas.core.transfer.extent import Extent
from prfaas.engine.reuse import Reuse
from prfaas.transport.base import LandedKV


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can take. Tokens; `kv_blocks` of `block_tokens` tokens each bound all sequences together.

    `copies_prefix`: a sequence that resumes from a prefix works on a copy of it, and takes room for that.
    `chunk_tokens`: prefill ends a step at every multiple of it, and has the state there.
    """

    max_model_len: int
    max_sequences: int
    vocab_size: int
    block_tokens: int
    kv_blocks: int
    copies_prefix: bool = False
    chunk_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy. `stop_ids` end the answer and are not part of it.

    `logprobs`: with each token its own log-probability and that many of the likeliest; None for none. `prompt_logprobs`
    likewise for the prompt's tokens. `max_tokens` 0 is only asked for with `prompt_logprobs`: see `Engine.generate`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How likely a token was: natural logarithms, of float32 scores before temperature and nucleus.

    `own` is the token's; `top` are the likeliest (id, logarithm), best first.
    """

    own: float
    top: tuple[tuple[int, float], ...] = ()


NO_TOKEN = -1
"""The id of a token that only brings the prompt's logprobs."""


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `finish` is set on the last one: "stop" (its id is a stop id, not text) or "length".

    `logprobs` when asked for. `prompt` on the first token when asked for: one entry a prompt token, the first None.
    """

    id: int
    finish: str | None = None
    logprobs: Logprobs | None = None
    prompt: tuple[Logprobs | None, ...] = ()


class KVSink(Protocol):
    """Where a prefill hands over KV. Called on the engine's thread, in order; must not block for long."""

    def put(self, extent: Extent, data: memoryview) -> None:
        """`data` is contiguous, row-major as `Extent` says, and never written again by the engine.

        A layer's rows come when that layer's chunk is done; a state once, final, when it is exact at the full length.
        """


class Engine(Protocol):
    """One model on one device, several sequences at once, fairly. All methods are called from one event loop."""

    @property
    def layout(self) -> KVLayout:
        """The KV layout that this engine sends and accepts."""

    @property
    def limits(self) -> Limits:
        """What it can take."""

    @property
    def running(self) -> int:
        """Sequences in prefill or decode now."""

    async def start(self) -> None:
        """Load; returns when ready to serve. Raises ConfigError when the model cannot be served."""

    async def close(self) -> None:
        """Stop all sequences and free everything."""

    async def prefill(self, tokens: Sequence[int], sink: KVSink, reuse: Reuse | None = None) -> None:
        """Compute the KV of `tokens` (the caller already dropped the last one: always N-1), chunk by chunk, into
        `sink`. What `reuse` resumes from goes there first, and is not computed.

        Cancelling the awaiting task stops the work at the next layer or chunk; no `put` comes after it returned.
        """

    async def adopt(self, tokens: Sequence[int], landed: LandedKV, reuse: Reuse) -> None:
        """`landed` is the KV of `tokens`, of which `reuse` resumes from the first, at least `landed.held`: leaves it in
        `reuse`, with the snapshot at its end, as if it had been computed. Copies. `tokens` are whole blocks.

        Raises RemoteError when it is seen to be other KV. Cancelled, it leaves nothing.
        """

    def generate(
        self, tokens: Sequence[int], sampling: Sampling, landed: LandedKV | None, reuse: Reuse | None = None
    ) -> AsyncGenerator[Token, None]:
        """Answer `tokens`. With `landed` (length N-1) only the last token is computed, else all of them but those that
        `reuse` resumes from, by the same N-1 + 1 split, so that all ways give the same tokens in float32. With
        `max_tokens` 0 the prompt is scored and one Token comes, `NO_TOKEN`, which has its logprobs. Prompt logprobs
        exclude both `landed` and a prefix.

        `landed.held` is how many tokens `reuse` resumes from: rows before are its own, those after, and the state,
        landed. Closing the generator stops the work. The engine copies what it needs of both before the first token.
        """
