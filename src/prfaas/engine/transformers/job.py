"""What the engine thread works on, one turn at a time: a prefill into a sink, or an answer token by token.

It knows the always-N-1 split, chunks, when a layer's KV is final and when a state is exact; it does not know threads or
event loops. A job that was told to stop raises `Stopped` at its next layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from prfaas.core.errors import InvariantError, RequestError
from prfaas.engine.base import NO_TOKEN, KVSink, Logprobs, Sampling, Token
from prfaas.engine.landed import check
from prfaas.engine.reuse import Reuse, last_block
from prfaas.engine.transformers import kvmap, pieces
from prfaas.engine.transformers.likely import likelihoods
from prfaas.engine.transformers.loaded import LoadedModel
from prfaas.engine.transformers.sampling import Sampler
from prfaas.transport.base import LandedKV


class Stopped(Exception):
    """Raised inside a job's turn when it was told to stop; `why` is what its waiter gets, None when nobody waits."""

    def __init__(self, why: Exception | None) -> None:
        super().__init__("stopped")
        self.why = why


class Job(ABC):
    """One sequence. `turn` runs on the engine thread, `stop` on any."""

    def __init__(self, tokens: Sequence[int], reuse: Reuse | None) -> None:
        self._tokens = tokens
        self._reuse = reuse or Reuse(keeps=False)
        self._stopping = False
        self._why: Exception | None = None

    def stop(self, why: Exception | None) -> None:
        """End at the next layer or turn. The first reason stays."""
        if not self._stopping:
            self._why = why
            self._stopping = True

    def check(self) -> None:
        """Raises Stopped when told to stop."""
        if self._stopping:
            raise Stopped(self._why)

    @abstractmethod
    def turn(self, model: LoadedModel, chunk_tokens: int, max_model_len: int) -> bool:
        """One chunk of prefill or one token of decode. Whether the job is done."""

    @abstractmethod
    def leave_behind(self, model: LoadedModel) -> None:
        """Copies what others may resume from. After the last turn, also one that raised Stopped."""

    @abstractmethod
    def release(self) -> None:
        """Let go of cache, tokens and landed KV. The job gets no turn after it."""

    def _leave(self, model: LoadedModel, cache: Any, ids: Sequence[int], length: int) -> None:
        """The first `length` of `ids` are in `cache`, whatever else is."""
        reuse, spec = self._reuse, model.spec
        if not reuse.keeps or spec is None or cache is None:
            return
        last = last_block(spec, length, reuse)
        first = reuse.stored // spec.block_tokens
        reuse.leave(ids, length, pieces.rows(cache, model.layout, spec, first, last))

    def _snapshot(self, model: LoadedModel, cache: Any, length: int, *, answering: bool) -> None:
        """Keeps the state at `length`, at which `cache` is, if it is wanted."""
        if model.spec is not None and self._reuse.wants(length, answering=answering):
            self._reuse.take(length, pieces.state(cache, model.layout, model.spec, length))

    def _checked_tokens(self, model: LoadedModel, length: int, longest: int) -> None:
        if length > longest:
            raise RequestError(f"{length} tokens do not fit; at most {longest} do", code="context_length_exceeded")
        if self._tokens and not (min(self._tokens) >= 0 and max(self._tokens) < model.vocab_size):
            raise RequestError(f"expected token ids from 0 to {model.vocab_size - 1}", code="token_out_of_range")


class _Chunks:
    """The first `length` tokens, computed in chunks; every way to compute them cuts them alike.

    They are cut at multiples of the chunk size and at the last length at which the same prompt could resume, so that it
    is computed alike then; where else a snapshot is wanted there is one cut more. What `reuse` resumes from is copied.
    `computed`: how many are in `cache`. With `top`, `likely` grows by what the scores behind each of them say of the
    token that follows.
    """

    def __init__(
        self,
        job: Job,
        model: LoadedModel,
        tokens: Sequence[int],
        length: int,
        sink: KVSink | None,
        reuse: Reuse,
        top: int | None = None,
    ) -> None:
        self._job, self._model, self._tokens, self._length, self._sink = job, model, tokens, length, sink
        self._top = top
        self.likely: list[Logprobs] = []
        self._cuts = set(reuse.stops)
        if model.spec is not None:
            self._cuts.add(length - length % model.spec.snapshot_tokens)
        self.cache: Any = model.new_cache() if reuse.tokens == 0 else model.cache_of(reuse)
        self._start, self._stop = 0, reuse.tokens
        self.computed = reuse.tokens
        if reuse.tokens and sink is not None:
            for index in model.layout.layers():
                self._after_layer(index)

    @property
    def done(self) -> bool:
        return self.computed >= self._length

    def run(self, chunk_tokens: int) -> None:
        start = self.computed
        stop = min((start // chunk_tokens + 1) * chunk_tokens, self._length)
        self._start, self._stop = start, min([stop, *(cut for cut in self._cuts if start < cut)])
        tokens = self._tokens[self._start : self._stop]
        if self._top is None:
            self._model.forward(tokens, self.cache, self._after_layer)
        else:
            scores = self._model.forward_all(tokens, self.cache, self._after_layer)
            self.likely += likelihoods(scores, self._tokens[self._start + 1 : self._stop + 1], self._top)
        self.computed = self._stop
        if self._stop in self._cuts:  # whoever resumes here must find the same strides
            kvmap.settle(self.cache, self._model.layout)

    def _after_layer(self, index: int) -> None:
        self._job.check()
        if self._sink is not None:
            layer = self.cache.layers[index]
            for part in self._model.layout.of_layer(index):
                for extent, data in kvmap.cut(layer, part, self._start, self._stop, self._length):
                    self._sink.put(extent, data)


class PrefillJob(Job):
    """The KV of all `tokens`, into `sink`."""

    def __init__(self, tokens: Sequence[int], sink: KVSink, reuse: Reuse | None = None) -> None:
        super().__init__(tokens, reuse)
        self._sink = sink
        self._chunks: _Chunks | None = None

    def turn(self, model: LoadedModel, chunk_tokens: int, max_model_len: int) -> bool:
        """One chunk."""
        self.check()
        if self._chunks is None:
            self._checked_tokens(model, len(self._tokens) + 1, max_model_len - 1)
            self._chunks = _Chunks(self, model, self._tokens, len(self._tokens), self._sink, self._reuse)
        self._reuse.trim()
        if not self._chunks.done:
            self._chunks.run(chunk_tokens)
            self._snapshot(model, self._chunks.cache, self._chunks.computed, answering=False)
        return self._chunks.done

    def leave_behind(self, model: LoadedModel) -> None:
        """The prompt, as far as it was computed."""
        if self._chunks is not None:
            self._leave(model, self._chunks.cache, self._tokens, self._chunks.computed)

    def release(self) -> None:
        """Let go of the cache."""
        self._tokens, self._chunks, self._reuse = (), None, Reuse(keeps=False)


class AdoptJob(Job):
    """KV of all `tokens` that came from elsewhere becomes pieces."""

    def __init__(self, tokens: Sequence[int], landed: LandedKV, reuse: Reuse) -> None:
        super().__init__(tokens, reuse)
        self._landed: LandedKV | None = landed

    def turn(self, model: LoadedModel, chunk_tokens: int, max_model_len: int) -> bool:
        """All of it."""
        self.check()
        spec, landed, reuse = model.spec, self._landed, self._reuse
        if spec is None or landed is None or landed.length != len(self._tokens):
            raise InvariantError(f"{len(self._tokens)} tokens to keep, of a model of which none are, or of other KV")
        if spec.stateful:
            reuse.take(landed.length, pieces.landed_state(landed, model.layout, spec, model.device))
        first = reuse.stored // spec.block_tokens
        made = pieces.landed_rows(landed, model.layout, spec, first, model.device)
        reuse.leave(self._tokens, landed.length, made[: max(0, last_block(spec, landed.length, reuse) - first)])
        return True

    def leave_behind(self, model: LoadedModel) -> None:
        """Nothing else: it is all there, or nothing is."""

    def release(self) -> None:
        """Let go of what landed."""
        self._tokens, self._landed, self._reuse = (), None, Reuse(keeps=False)


class GenerateJob(Job):
    """An answer to `tokens`: from `landed` and what it builds on, else all but the last are computed first. Each new
    token goes to `emit`."""

    def __init__(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        landed: LandedKV | None,
        emit: Callable[[Token], None],
        reuse: Reuse | None = None,
    ) -> None:
        super().__init__(tokens, reuse)
        self._sampling = sampling
        self._landed = landed
        self._emit = emit
        self._chunks: _Chunks | None = None
        self._cache: Any = None
        self._sampler: Sampler | None = None
        self._prompt: tuple[Logprobs | None, ...] = ()
        self._last = 0
        self._left = 0
        self._fed: list[int] = []
        """Tokens behind the first N-1 that are in the cache: the prompt's last one, and those of the answer."""

    def turn(self, model: LoadedModel, chunk_tokens: int, max_model_len: int) -> bool:
        """One chunk, or one token."""
        self.check()
        if self._sampler is None:
            self._sampler = self._begin(model, max_model_len)
        self._reuse.trim()
        if self._chunks is not None:
            if not self._chunks.done:
                self._chunks.run(chunk_tokens)
                self._snapshot(model, self._chunks.cache, self._chunks.computed, answering=False)
                return False
            self._prompt = (None, *self._chunks.likely) if self._sampling.prompt_logprobs is not None else ()
            self._cache, self._chunks = self._chunks.cache, None
            if self._left == 0:
                self._emit(Token(NO_TOKEN, "length", prompt=self._prompt))
                return True
            kvmap.settle(self._cache, model.layout)
        scores = model.forward([self._last], self._cache, lambda _: self.check())
        self._fed.append(self._last)
        self._snapshot(model, self._cache, len(self._tokens) - 1 + len(self._fed), answering=True)
        self._last = self._sampler.choose(scores)
        self._left -= 1
        stopped = self._last in self._sampling.stop_ids
        finish = "stop" if stopped else "length" if self._left == 0 else None
        top = self._sampling.logprobs
        likely = None if top is None else likelihoods(scores.unsqueeze(0), [self._last], top)[0]
        self._emit(Token(self._last, finish, likely, self._prompt))
        self._prompt = ()
        return finish is not None

    def leave_behind(self, model: LoadedModel) -> None:
        """The prompt, as far as it was computed, and the answer without its last token, which nothing was fed."""
        if self._chunks is not None:
            self._leave(model, self._chunks.cache, self._tokens, self._chunks.computed)
        else:
            ids = array("I", self._tokens[:-1])
            ids.extend(self._fed)
            self._leave(model, self._cache, ids, len(ids))

    def release(self) -> None:
        """Let go of the cache."""
        self._tokens, self._chunks, self._cache, self._landed, self._prompt = (), None, None, None, ()
        self._fed, self._reuse = [], Reuse(keeps=False)

    def _begin(self, model: LoadedModel, max_model_len: int) -> Sampler:
        length, wanted = len(self._tokens) - 1, self._sampling
        if length < 0 or wanted.max_tokens < (0 if wanted.prompt_logprobs is not None else 1):
            raise RequestError("expected at least one prompt token and max_tokens of 1 or more", code="invalid_value")
        if self._landed is not None and wanted.prompt_logprobs is not None:
            raise InvariantError("prompt logprobs of KV that landed: its scores are not here")
        self._checked_tokens(model, length + 1, max_model_len - min(1, wanted.max_tokens))
        sampler = Sampler(wanted)
        self._last = self._tokens[-1]
        self._left = min(wanted.max_tokens, max_model_len - length - 1)
        if self._landed is None:
            if self._reuse.tokens and wanted.prompt_logprobs is not None:
                raise InvariantError("prompt logprobs of a prefix that is kept: its scores are not")
            self._chunks = _Chunks(self, model, self._tokens, length, None, self._reuse, wanted.prompt_logprobs)
        else:
            check(model.layout, length, self._landed, self._reuse)
            self._cache, self._landed = model.cache_from(self._landed, self._reuse), None
            self._snapshot(model, self._cache, length, answering=False)
        return sampler
