"""`examples/two-by-two.yaml`: two gateways, two prefill services, four links, twelve emulated nodes. By the threshold
alone, so that it is known who goes where; and as it is, by `ours`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.derived import expected
from tests.e2e.system import System, until
from tests.e2e.texts import plain_text

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

GATEWAYS, SERVICES = ("east", "west"), ("north", "south")
LONG = 2500
REASONS = {"long", "short", "spare", "sooner_here", "link_bound", "cheaper", "claimed"}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    began = time.monotonic()
    state = tmp_path_factory.mktemp("state")
    file = state / "two-by-two.yaml"
    said = (ROOT / "examples/two-by-two.yaml").read_text()
    assert said.count("policy:\n") == 1
    file.write_text(said.replace("policy:\n", "policy:\n  kind: threshold\n"))
    system = System.start(file, state, gateways=2)
    print(f"\ntwo by two was ready after {time.monotonic() - began:.1f} s")
    for gateway in GATEWAYS:
        for service in SERVICES:
            until(f"{gateway} knows {service}", lambda g=gateway, s=service: f"cluster={s}" in system.log(g))
    yield system
    assert system.stop() == 0


def ask(client: openai.OpenAI, prompt: str, max_tokens: int = 12) -> tuple[str, str]:
    """The route, and the text."""
    raw = client.completions.with_raw_response.create(
        model="emulated", prompt=prompt, max_tokens=max_tokens, temperature=0
    )
    return raw.headers["x-prfaas-route"], raw.parse().choices[0].text


def test_both_endpoints_are_told(grid: System) -> None:
    (said,) = [line for line in grid.lines if line.startswith("Ready after")]
    for at, gateway in enumerate(GATEWAYS):
        assert f"http://127.0.0.1:{grid.port + at}/v1 ({gateway})" in said


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_each_gateway_uses_both_services(grid: System, gateway: str) -> None:
    prompts = [plain_text()[at : at + LONG] for at in range(24)]
    with grid.client(gateway) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: ask(client, prompt), prompts))
    routes = Counter(route.partition("; copy=")[0] for route, _ in answers)
    assert set(routes) == {f"remote; cluster={service}; reason=long" for service in SERVICES}
    assert min(routes.values()) >= 6
    for prompt, (_, text) in zip(prompts, answers, strict=True):
        assert text == expected(prompt, 12)
    for service in SERVICES:
        moved = sum(
            grid.metric(f"{gateway}-d{n}", "prfaas_kv_bytes_total", link=f"{service}->{gateway}") for n in (1, 2)
        )
        assert moved > 0
    grid.settled()


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_short_prompts_stay(grid: System, gateway: str) -> None:
    with grid.client(gateway) as client:
        assert ask(client, "Good morning") == (f"local; cluster={gateway}; reason=short", expected("Good morning", 12))
        chat = client.chat.completions.create(
            model="emulated", messages=[{"role": "user", "content": "Hello!"}], max_tokens=5, temperature=0, stream=True
        )
        assert sum(len(chunk.choices[0].delta.content or "") for chunk in chat if chunk.choices) <= 5


def test_without_one_service_the_other_serves(grid: System) -> None:
    dead = grid.kill("north")
    prompt = plain_text()[500 : 500 + LONG]
    with grid.client("east") as client:
        route, text = ask(client, prompt)
    assert route.partition("; copy=")[0] in (
        "remote; cluster=south; reason=long",
        "remote; cluster=south; reason=retry",
    )
    assert text == expected(prompt, 12)
    grid.restored("north", dead)
    grid.settled()


def test_as_it_is_every_decision_has_its_reason_and_every_answer_is_right(tmp_path: Path) -> None:
    """Its nodes say how long they take, so only bytes are unknown, and those only at first."""
    system = System.start(ROOT / "examples/two-by-two.yaml", tmp_path, gateways=2)
    try:
        prompts = [plain_text()[at : at + (LONG if at % 2 else 300 + 20 * at)] for at in range(24)]
        with system.client("east") as client, ThreadPoolExecutor(8) as pool:
            first = [ask(client, prompt) for prompt in prompts[:2]]
            answers = list(pool.map(lambda prompt: ask(client, prompt), prompts))
        assert all(route.endswith("; unknown=kv_bytes") for route, _ in first)
        for prompt, (route, text) in zip(prompts, answers, strict=True):
            where, cluster, reason, *_ = (part.strip() for part in route.split(";"))
            assert (where == "local") == (cluster == "cluster=east")
            assert reason.removeprefix("reason=") in REASONS
            assert text == expected(prompt, 12)
        assert any(route.startswith("remote") for route, _ in answers)
        assert system.metric("east", "prfaas_unknown_signals_total", signal="kv_bytes") == 2
        system.settled()
    finally:
        assert system.stop() == 0
