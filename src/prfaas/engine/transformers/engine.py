"""`Engine` on transformers: wiring of checkpoint, thread and jobs. It computes nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError, InvariantError, RequestError
from prfaas.engine.base import KVSink, Limits, Sampling, Token
from prfaas.engine.reuse import Reuse
from prfaas.engine.transformers.checkpoint import open_checkpoint
from prfaas.engine.transformers.job import AdoptJob, GenerateJob, Job, PrefillJob, Stopped
from prfaas.engine.transformers.loaded import DTYPES, LoadedModel, load
from prfaas.engine.transformers.worker import Worker
from prfaas.runtime.tasks import to_its_end
from prfaas.transport.base import LandedKV

_T = TypeVar("_T")


class TransformersEngine:
    """One checkpoint directory on one device. See `prfaas.engine.base.Engine` for the promises of each method.

    Both ends of a hand-over compute the same tokens in float32 when `chunk_tokens`, `block_tokens`, `threads` and the
    kind of device agree: what is cut elsewhere rounds elsewhere.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        kv_blocks: int,
        chunk_tokens: int = 512,
        threads: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
        max_model_len: int | None = None,
        max_sequences: int = 4,
        block_tokens: int = 64,
    ) -> None:
        """`max_model_len` None: what the model was made for, at most what `kv_blocks` hold. Raises ConfigError."""
        for name, value in {
            "kv_blocks": kv_blocks,
            "chunk_tokens": chunk_tokens,
            "threads": threads,
            "max_model_len": 1 if max_model_len is None else max_model_len,
            "max_sequences": max_sequences,
            "block_tokens": block_tokens,
        }.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}: expected 1 or more")
        if dtype not in DTYPES:
            raise ConfigError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
        self._model_dir = model_dir
        self._chunk_tokens = chunk_tokens
        self._threads = threads
        self._device = device
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._max_sequences = max_sequences
        self._block_tokens = block_tokens
        self._kv_blocks = kv_blocks
        self._worker: Worker | None = None
        self._model: LoadedModel | None = None
        self._layout: KVLayout | None = None
        self._limits: Limits | None = None
        self._running = 0

    @property
    def layout(self) -> KVLayout:
        """The KV layout that this engine sends and accepts. Known once started."""
        return _started(self._layout)

    @property
    def limits(self) -> Limits:
        """What it can take. Known once started."""
        return _started(self._limits)

    @property
    def running(self) -> int:
        """Sequences in prefill or decode now."""
        return self._running

    async def start(self) -> None:
        """Load on the engine thread. Raises ConfigError when the model cannot be served."""
        if self._worker is not None:
            raise InvariantError("started twice")
        self._worker = Worker(f"engine {self._model_dir.name}", self._max_sequences)
        model, self._limits = await self._worker.start(self._load)
        self._model, self._layout = model, model.layout

    async def close(self) -> None:
        """Stop all sequences, end the thread, drop the model; what still waits gets RequestError 503."""
        if self._worker is not None:
            why = "this engine is shutting down"
            await self._worker.close(RequestError(why, status=503, kind="server_error", code="shutting_down"))
        self._model = None

    async def prefill(self, tokens: Sequence[int], sink: KVSink, reuse: Reuse | None = None) -> None:
        """Compute the KV of `tokens` into `sink`, chunk by chunk. Raises what `sink.put` raised."""
        ticket = self._submit(PrefillJob(tokens, sink, reuse))
        try:
            await asyncio.shield(ticket.over)
        finally:
            await ticket.leave()

    async def adopt(self, tokens: Sequence[int], landed: LandedKV, reuse: Reuse) -> None:
        """Keep what landed, on the model's device."""
        ticket = self._submit(AdoptJob(tokens, landed, reuse))
        try:
            await asyncio.shield(ticket.over)
        finally:
            await ticket.leave()

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, landed: LandedKV | None, reuse: Reuse | None = None
    ) -> AsyncGenerator[Token, None]:
        """Answer `tokens`. Raises RequestError for what the model cannot do."""
        arrived: asyncio.Queue[Token | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(token: Token) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, token)

        ticket = self._submit(GenerateJob(tokens, sampling, landed, emit, reuse))
        ticket.over.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (token := await arrived.get()) is not None:
                yield token
            ticket.over.result()
        finally:
            await ticket.leave()

    def _submit(self, job: Job) -> _Ticket:
        ticket = _Ticket(self, job)
        _started(self._worker).submit(ticket)
        self._running += 1
        ticket.over.add_done_callback(self._one_less)
        return ticket

    def _one_less(self, _over: asyncio.Future[None]) -> None:
        self._running -= 1

    def _turn(self, job: Job) -> bool:
        model = _started(self._model)
        with torch.inference_mode():
            try:
                done = job.turn(model, self._chunk_tokens, self.limits.max_model_len)
            except Stopped as stopped:
                if stopped.why is None:  # whoever asked left: what is computed is still good
                    job.leave_behind(model)
                raise
            if done:
                job.leave_behind(model)
            return done

    def _load(self) -> tuple[LoadedModel, Limits]:
        torch.set_num_threads(self._threads)  # of this thread: every engine has its own number
        model = load(open_checkpoint(self._model_dir), self._dtype, self._device, self._block_tokens)
        room = self._kv_blocks * self._block_tokens
        longest = self._max_model_len or min(model.max_length, room)
        if longest > model.max_length:
            raise ConfigError(f"max_model_len is {longest}: {self._model_dir} was made for {model.max_length} tokens")
        if longest > room:
            raise ConfigError(f"max_model_len is {longest}: {self._kv_blocks} KV blocks hold {room} tokens")
        return model, Limits(
            longest,
            self._max_sequences,
            model.vocab_size,
            self._block_tokens,
            self._kv_blocks,
            copies_prefix=True,
            chunk_tokens=self._chunk_tokens,
        )


class _Ticket:
    """One job between the two threads: turns over there, `over` here."""

    def __init__(self, engine: TransformersEngine, job: Job) -> None:
        self._engine = engine
        self._job = job
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def turn(self) -> bool:
        """One step, on the engine thread."""
        done = True
        try:
            done = self._engine._turn(self._job)
        finally:
            if done:
                self._job.release()
        return done

    def stop(self, why: Exception | None) -> None:
        """Ask for the end, from any thread."""
        self._job.stop(why)

    def ended(self, error: BaseException | None) -> None:
        """It left the thread."""
        if isinstance(error, Stopped):
            error = error.why
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    async def leave(self) -> None:
        """Returns when the thread has let go of the job, however often the waiting task is cancelled meanwhile."""
        self._job.stop(None)
        with contextlib.suppress(Exception):  # whoever waited has it, or had left
            await to_its_end(self.over)


def _started(value: _T | None) -> _T:
    if value is None:
        raise InvariantError("the engine is not started")
    return value
