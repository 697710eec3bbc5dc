"""A model's text: its tokenizer, chat template and end marks, from a Hugging Face model directory.

It knows the files of such a directory (and not transformers: a node needs no torch to read text); it does not know
requests, KV or engines. What a model's own engine would do is done: a rendered chat has its special tokens already and
gets no second BOS, a plain prompt gets those of the tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from tokenizers import Tokenizer

from prfaas.core.errors import ConfigError, RequestError
from prfaas.model.bound import token_bound
from prfaas.model.chat import ChatTemplate
from prfaas.model.detok import Detokenizer, TextStream
from prfaas.model.spelling import Spelling

T = TypeVar("T")

MAX_JSON_BYTES = 64 << 20
THREADS = max(1, min(4, (os.cpu_count() or 2) - 1))
"""Threads that tokenize what is long: few, so that many long prompts at once leave a core to the event loop."""
QUICK_THREADS = 1
"""Threads for all else: what takes no time waits for nothing that does."""
LARGE = 64 << 10
"""Characters of text (or token ids) from which work is long: tens of milliseconds."""
Fits = Callable[[int], None]
"""Is told how many tokens a prompt has, at least. Raises RequestError when they are too many."""

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def packed(ids: Sequence[int]) -> array[int]:
    """`ids` as 32-bit words: a quarter of a list's memory or less, and no work for the garbage collector, which goes
    through lists on the event loop's time. Raises OverflowError when one does not fit."""
    return array("I", ids)


def prompt_hash(tokens: Sequence[int]) -> str:
    """XXH3-128, as hex, of the ids as little-endian 32-bit words: what two nodes compare. It keeps no secret."""
    words = packed(tokens)
    if sys.byteorder == "big":
        words.byteswap()
    return xxhash.xxh3_128_hexdigest(words)


class Text:
    """Text of one model. `vocab_size`: ids are below it; `stop_ids`: ids that end an answer.

    Its threads are the caller's to end by `close`.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, template: ChatTemplate | None, stop_ids: frozenset[int], vocab_size: int
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.vocab_size, self.stop_ids = vocab_size, stop_ids
        self._tokenizer, self._template = tokenizer, template
        self._special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        self._spelling = Spelling(tokenizer)
        self._bound = token_bound(tokenizer)
        self._long = ThreadPoolExecutor(THREADS, thread_name_prefix="prfaas-text")
        self._quick = ThreadPoolExecutor(QUICK_THREADS, thread_name_prefix="prfaas-quick")

    @classmethod
    def load(cls, directory: Path) -> Text:
        """Read `directory`. Raises ConfigError that names the file at fault."""
        path = directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_buffer(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); a fast tokenizer is needed") from None
        except Exception as error:  # tokenizers raises plain Exception
            raise ConfigError(f"{path}: no tokenizer: {error}") from None
        config = _json(directory / "config.json")
        said = _json(directory / "tokenizer_config.json", missing_ok=True)
        special = {name: text for name in SPECIAL_NAMES if (text := _content(said.get(name)))}
        source = _template_source(directory, said)
        return cls(
            tokenizer,
            template=ChatTemplate(source, special) if source else None,
            stop_ids=_stop_ids(directory, config, tokenizer, special.get("eos_token")),
            vocab_size=_of(config, "vocab_size") or tokenizer.get_vocab_size(with_added_tokens=True),
        )

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a chat. Raises RequestError, 400, when the model has no template or it refuses the messages."""
        if self._template is None:
            raise RequestError("this model has no chat template; use /v1/completions", code="no_chat_template")
        return self._template.render(messages)

    async def encode(self, text: str, fits: Fits | None = None) -> array[int]:
        """Ids of a plain prompt, as 32-bit words, made off the event loop, or not at all when the text cannot fit.
        Raises RequestError, 400, and what `fits` raises."""
        return await self._ids(text, True, fits)

    async def encode_chat(self, messages: Sequence[Mapping[str, str]], fits: Fits | None = None) -> array[int]:
        """Ids of a rendered chat, likewise. Raises RequestError, 400, and what `fits` raises."""
        chars = sum(len(part) for message in messages for part in message.values())
        return await self._ids(await self.off_loop(partial(self.render_chat, messages), chars), False, fits)

    async def checked(self, ids: Sequence[int]) -> array[int]:
        """`ids` that a client sent, as 32-bit words. Raises RequestError, 400, when one is out of range."""
        return await self.off_loop(partial(self._packed, ids), len(ids))

    async def off_loop(self, work: Callable[[], T], size: int = 0) -> T:
        """`work` on one of the few threads for text: a long body's JSON, say. What has a `size` of LARGE or more waits
        in a line of its own. Work whose caller is cancelled while it waits is never begun."""
        threads = self._long if size >= LARGE else self._quick
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def stream(self, stops: Sequence[str] = ()) -> TextStream:
        """The text of one answer, token by token, up to the first of `stops`."""
        return TextStream(Detokenizer(self._tokenizer, self._special), stops)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def spell(self, token: int) -> bytes:
        """The bytes of one token, which may be part of a character; a special token's name."""
        return self._spelling.of(token)

    def offsets(self, ids: Sequence[int]) -> list[int]:
        """The character of `decode(ids)` at which each token begins, or goes on with an unfinished one."""
        stream, found = self.stream(), []
        for token in ids:
            found.append(stream.chars)
            stream.push(token)
        return found

    def printable(self) -> tuple[int, ...]:
        """The ids of the printable ASCII characters, in order, of those that are one token each."""
        encoded = self._tokenizer.encode_batch_fast([chr(code) for code in range(0x20, 0x7F)], add_special_tokens=False)
        return tuple(one.ids[0] for one in encoded if len(one.ids) == 1)

    def close(self) -> None:
        """End the threads; what they do is dropped."""
        self._long.shutdown(wait=False, cancel_futures=True)
        self._quick.shutdown(wait=False, cancel_futures=True)

    async def _ids(self, text: str, special: bool, fits: Fits | None) -> array[int]:
        if fits is not None and self._bound is not None and len(text) >= LARGE:
            added = self._tokenizer.num_special_tokens_to_add(False) if special else 0
            fits(await self.off_loop(partial(self._bound.least, text)) + added)
        return await self.off_loop(partial(self._encode, text, special=special), len(text))

    def _encode(self, text: str, *, special: bool) -> array[int]:
        # encode() would keep the GIL, 260 ms for 128K tokens; the batch call lets it go. The fast one has no offsets.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return self._packed(ids)

    def _packed(self, ids: Sequence[int]) -> array[int]:
        if not ids:
            raise RequestError("the prompt is empty", param="prompt", code="empty_prompt")
        worst = max(ids)
        if 0 <= worst < self.vocab_size:
            try:
                return packed(ids)
            except OverflowError:
                worst = min(ids)
        elif (least := min(ids)) < 0:
            worst = least
        raise RequestError(
            f"token id {worst} is out of range: this model has {self.vocab_size}",
            param="prompt",
            code="token_out_of_range",
        )


def _json(path: Path, missing_ok: bool = False) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ConfigError(f"{path}: over {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing_ok:
            return {}
        raise ConfigError(f"{path}: no such file; a model directory has one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return value


def _of(config: Mapping[str, Any], key: str) -> Any:
    """`key` of a model's config, or of its text part where several modalities have one each."""
    inner = config.get("text_config")
    value = config.get(key)
    return inner.get(key) if value is None and isinstance(inner, dict) else value


def _content(token: Any) -> str | None:
    """A special token's text: written plainly, or as an AddedToken's fields."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _template_source(directory: Path, said: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
    found = said.get("chat_template")
    if isinstance(found, list):  # several by name; "default" is for plain chats
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _stop_ids(directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer, eos: str | None) -> frozenset[int]:
    """End marks of generation_config.json (id or list), else of config.json; and the tokenizer's own, as in vLLM."""
    generation = _json(directory / "generation_config.json", missing_ok=True)
    said = generation.get("eos_token_id")
    said = said if said is not None else _of(config, "eos_token_id")
    ids = {item for item in (said if isinstance(said, list) else [said]) if isinstance(item, int)}
    own = tokenizer.token_to_id(eos) if eos else None
    return frozenset(ids if own is None else ids | {own})
