"""The default model, real weights: it answers in real words, and both ways give the same tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from prfaas.engine.base import Sampling
from prfaas.engine.transformers.engine import TransformersEngine
from prfaas.model.fetch import resolve_model
from prfaas.model.text import Text
from prfaas.testing.gather import gather
from tests.e2e.conftest import ROOT
from tests.e2e.system import System
from tests.e2e.texts import licences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BLOCK, CHUNK, LONGEST = 64, 256, 4096
LENGTHS = [
    1,
    2,
    *(n + off for n in (BLOCK, CHUNK, 2 * CHUNK, 4 * CHUNK) for off in (-1, 0, 1, 2)),
    LONGEST - 1,
    LONGEST,
    LONGEST + 1,
]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System.start(ROOT / "examples/two-clusters.yaml", tmp_path_factory.mktemp("state"), None)
    yield system
    assert system.stop() == 0


def test_a_question_stays_and_is_answered_in_words(smollm2: System) -> None:
    raw = smollm2.client().chat.completions.with_raw_response.create(
        model="smollm2",
        temperature=0,
        max_tokens=20,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
    )
    assert raw.headers["x-prfaas-route"] == "local; cluster=home; reason=short"
    assert "Paris" in (raw.parse().choices[0].message.content or "")


def test_a_licence_goes_far_and_streams_home(smollm2: System) -> None:
    licence = (ROOT / "LICENSE").read_text()
    raw = smollm2.client().chat.completions.with_raw_response.create(
        model="smollm2",
        temperature=0,
        max_tokens=40,
        stream=True,
        messages=[{"role": "user", "content": licence + "\n\nWhich licence is this?"}],
    )
    assert raw.headers["x-prfaas-route"] == "remote; cluster=far; reason=long"
    pieces = [chunk.choices[0].delta.content or "" for chunk in raw.parse() if chunk.choices]
    assert len(pieces) > 10
    assert "Apache" in "".join(pieces)
    assert smollm2.metric("home-decode", "prfaas_kv_bytes_total", link="far->home") > 50e6
    smollm2.settled()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[tuple[TransformersEngine, TransformersEngine, Text]]:
    directory = resolve_model("smollm2")
    made = [TransformersEngine(directory, chunk_tokens=CHUNK, threads=2, kv_blocks=1024) for _ in range(2)]
    text = Text.load(directory)
    for engine in made:
        await engine.start()
    yield made[0], made[1], text
    for engine in made:
        await engine.close()
    text.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("length", LENGTHS)
async def test_remote_prefill_and_local_decode_give_the_same_tokens(
    pair: tuple[TransformersEngine, TransformersEngine, Text], length: int
) -> None:
    far, home, text = pair
    tokens = (await text.encode(licences()))[:length]
    assert len(tokens) == length
    sampling = Sampling(max_tokens=8, temperature=0.0)
    alone = [token.id async for token in home.generate(tokens, sampling, None)]
    landed = (await gather(far, tokens[:-1])).landed if length > 1 else None
    handed = [token.id async for token in home.generate(tokens, sampling, landed)]
    assert handed == alone
