"""A model directory's text: what transformers would say, without transformers and off the loop."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from tokenizers import Tokenizer

from prfaas.core.errors import ConfigError, RequestError
from prfaas.model.chat import ChatTemplate
from prfaas.model.text import LARGE, THREADS, Text, packed, prompt_hash
from prfaas.testing.bytemodel import BOS, EOS, TEMPLATE, VOCAB, write_byte_model

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé 漢 😀 <s> {{ x }}"},
    {"role": "assistant", "content": "ok\n"},
    {"role": "user", "content": ""},
]


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Text]:
    made = Text.load(write_byte_model(tmp_path))
    yield made
    made.close()


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


async def test_prompts_and_chats_have_one_bos(text: Text) -> None:
    assert await text.encode("hé") == packed([BOS, *"hé".encode()])
    chat = await text.encode_chat([{"role": "user", "content": "hé"}])
    assert chat == packed([BOS, *"<user>hé\n<assistant>".encode()])
    assert (text.vocab_size, text.stop_ids, text.has_chat) == (VOCAB, frozenset({EOS}), True)
    assert text.decode([BOS, 104, 105, EOS]) == "hi"


async def test_ids_are_checked(text: Text) -> None:
    assert await text.checked([0, VOCAB - 1]) == packed([0, VOCAB - 1])
    for ids, bad in (([1, VOCAB], VOCAB), ([1, -1], -1), ([1, 2**70], 2**70), ([VOCAB, -2, 1], -2), ([-1], -1)):
        with pytest.raises(RequestError, match=f"token id {bad} is out of range") as caught:
            await text.checked(ids)
        assert (caught.value.status, caught.value.param) == (400, "prompt")
    with pytest.raises(RequestError, match="the prompt is empty"):
        await text.checked([])


async def test_templates_that_refuse(text: Text, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no developers here") as caught:
        await text.encode_chat([{"role": "developer", "content": "x"}])
    assert caught.value.param == "messages"
    plain = Text.load(write_byte_model(tmp_path / "plain", chat=False))
    with pytest.raises(RequestError, match="no chat template") as none:
        plain.render_chat(TURNS)
    assert (none.value.status, none.value.code) == (400, "no_chat_template")
    plain.close()


@pytest.mark.parametrize("source", ["{{ x", "{% if %}", "{% nonsense %}"])
def test_broken_templates(source: str) -> None:
    with pytest.raises(ConfigError, match="chat template is broken"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_templates_are_kept_in_the_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match="refuses"):
        ChatTemplate(source, {}).render(TURNS)


def test_a_template_of_its_own_file_and_by_name(tmp_path: Path) -> None:
    directory = write_byte_model(tmp_path, chat=False)
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}named"}]
    edit(directory / "tokenizer_config.json", chat_template=named)
    first = Text.load(directory)
    assert first.render_chat(TURNS) == "</s>named"
    (directory / "chat_template.jinja").write_text("{%- for m in messages %}{%- break %}{%- endfor %}file")
    second = Text.load(directory)
    assert second.render_chat(TURNS) == "file"
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 7}, {}, {7, EOS}),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, {7, 8, EOS}),
        ({}, {"eos_token_id": 9}, {9, EOS}),
        ({}, {"text_config": {"eos_token_id": [4]}}, {4, EOS}),
        (None, {}, {EOS}),
    ],
)
def test_end_marks(tmp_path: Path, generation: Any, config: dict[str, Any], expected: set[int]) -> None:
    directory = write_byte_model(tmp_path)
    path = directory / "generation_config.json"
    path.unlink() if generation is None else path.write_text(json.dumps(generation))
    edit(directory / "config.json", **config)
    loaded = Text.load(directory)
    assert loaded.stop_ids == expected
    loaded.close()


def test_bad_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Text.load(tmp_path)
    directory = write_byte_model(tmp_path)
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer.json: no tokenizer"):
        Text.load(directory)
    directory = write_byte_model(tmp_path)
    (directory / "config.json").write_text("[1")
    with pytest.raises(ConfigError, match=r"config.json"):
        Text.load(directory)
    (directory / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config.json: no such file"):
        Text.load(directory)


def test_hash() -> None:
    assert prompt_hash([1, 2, 3]) == prompt_hash((1, 2, 3))
    assert len({prompt_hash(ids) for ids in ([], [0], [0, 0], [1, 2], [2, 1], [258], [2, 1, 0])}) == 7
    assert prompt_hash([1, 2**31]) == xxhash.xxh3_128_hexdigest(bytes([1, 0, 0, 0, 0, 0, 0, 0x80]))


async def test_same_as_transformers(tmp_path: Path) -> None:
    """Ids, rendered chats and decoded text are those of transformers.AutoTokenizer."""
    transformers = pytest.importorskip("transformers")
    directory = write_byte_model(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
    ours = Text.load(directory)
    for prompt in ("plain", "Hé 漢 😀\r\n\t  two", "<s>typed by the user</s>", " " * 9):
        assert list(await ours.encode(prompt)) == theirs(prompt)["input_ids"]
    rendered = theirs.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert ours.render_chat(TURNS) == rendered
    ids = theirs.apply_chat_template(TURNS, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert list(await ours.encode_chat(TURNS)) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    ours.close()


def test_templates_of_known_models_render_as_in_transformers() -> None:
    """The constructs that published templates use: loop controls, namespaces, tojson, generation, trimmed blocks."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    sources = [
        TEMPLATE,
        "{% set ns = namespace(n=0) %}\n{% for m in messages %}\n"
        "{% set ns.n = ns.n + 1 %}\n{{ ns.n }}{{ m | tojson }}\n"
        "{% endfor %}",
        "{%- for m in messages -%}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% if m.role == 'system' %}{% continue %}"
        "{% endif %}[{{ m['content'].strip() }}|{{ m.content | trim | upper }}|{{ m.get('name', 'x') }}]{%- endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}  \n  {% endfor %}",
        "{% if tools is none %}no tools{% endif %}{% if documents %}x{% endif %}{{ tools is defined }}{{ bos_token }}",
        "{% macro say(m) %}<{{ m.role }}>{% endmacro %}"
        "{{ say(messages[0]) }}{{ messages[1:] | length }}{{ dict(a=1) }}",
    ]
    for source in sources:
        theirs, _ = utils.render_jinja_template(
            [TURNS], chat_template=source, add_generation_prompt=True, bos_token="<s>"
        )
        assert ChatTemplate(source, {"bos_token": "<s>"}).render(TURNS) == theirs[0]


async def test_long_prompts_do_not_stop_the_loop(text: Text) -> None:
    """128K tokens: while they are encoded, the loop goes on. (encode() alone would keep it for a quarter second.)"""
    rng = random.Random(5)
    prompt = "".join(rng.choice("abcdefgh é\n") for _ in range(115_000))
    turns, running = 0, True

    async def tick() -> None:
        nonlocal turns
        while running:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.create_task(tick())
    ids = await text.encode(prompt)
    running = False
    await ticking
    assert len(ids) > 115_000
    assert turns > 20  # how long each took: benchmarks/health.py


def too_many(limit: int) -> Any:
    """Whether a prompt of so many fits; what it was told is in `told`."""
    told: list[int] = []

    def fits(least: int) -> None:
        told.append(least)
        if least > limit:
            raise RequestError(f"at least {least}", status=413, code="context_length_exceeded")

    fits.told = told  # type: ignore[attr-defined]
    return fits


async def test_a_text_that_cannot_fit_is_not_tokenized(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, fits = "hé" * LARGE, too_many(3 * LARGE + 1)
    assert len(await text.encode(prompt, fits)) == 3 * LARGE + 1
    monkeypatch.setattr(text, "_encode", None)
    for asked in (text.encode(prompt + "x", fits), text.encode_chat([{"role": "user", "content": prompt}], fits)):
        with pytest.raises(RequestError, match="at least"):
            await asked
    # The BOS of a chat is written in it.
    assert fits.told == [3 * LARGE + 1, 3 * LARGE + 2, 3 * LARGE + len("<user>\n<assistant>")]


async def test_without_a_bound_and_for_what_is_short_it_is_tokenized(text: Text) -> None:
    fits = too_many(1)
    assert await text.encode("short", fits) == packed([BOS, *b"short"])
    text._bound = None
    assert len(await text.encode("x" * LARGE, fits)) == LARGE + 1
    assert fits.told == []


async def test_what_is_short_does_not_wait_for_what_is_long(text: Text) -> None:
    """And what nobody waits for any more is not begun."""
    gate, begun = threading.Event(), []
    busy = [asyncio.create_task(text.off_loop(gate.wait, LARGE)) for _ in range(THREADS)]
    left = asyncio.create_task(text.off_loop(lambda: begun.append(1), LARGE))
    stays = asyncio.create_task(text.encode("x" * LARGE))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            assert await text.encode("short") == packed([BOS, *b"short"])
            assert len(await text.encode_chat([{"role": "user", "content": "short"}])) > 5
            assert await text.checked([1, 2]) == packed([1, 2])
        assert not stays.done()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    finally:
        gate.set()
    await asyncio.gather(*busy)
    assert len(await stays) == LARGE + 1
    assert begun == []


def test_truncation_and_padding_of_a_checkpoint_are_off(tmp_path: Path) -> None:
    directory = write_byte_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(directory / "tokenizer.json"))
    loaded = Text.load(directory)
    assert asyncio.run(loaded.encode("abcdefgh")) == packed([BOS, *b"abcdefgh"])
    loaded.close()
