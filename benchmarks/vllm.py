"""TTFT, exposed transfer and requests a second of two `vllm serve`: our KV connector against NIXL's and Mooncake's.

The same two servers on CPUs (model, cores, flags) are started once for each connector, and a pass does that in turn.
All are driven directly, as each wants it: ours and Mooncake both legs at once, NIXL one after the other; and ours also
through the gateway of `prfaas up`. Everything is on loopback, nothing is paced or delayed. TTFT is from the first call
(ours: that for landing credit) to the first streamed token. `prefill` and `decode` are the same prompt answered by one
server alone, in the same round: what TTFT exceeds `prefill` by is the exposed transfer, in which the decode side also
computes a step; goodput is the KV that the prompt needs over that. Every way must give the answer of one server alone,
bit by bit the same computation in float32. Medians; the first round of each start is not counted.

    python -m benchmarks.vllm [--kind gemma3 | --model DIR] [--layers 8] [--repeat 5] [--passes 2] [--json FILE]
        [--chart FILE]

$PRFAAS_VLLM_PYTHON is the interpreter that has vLLM, and may have `nixl` and `mooncake-transfer-engine-non-cuda`; a
connector that is not there is left out. A prompt longer than `--max-batch` tokens takes several steps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from tests.e2e.system import SECRET
from tests.freeports import free_port
from tests.vllm import served as system_of
from tests.vllm.pair import PYTHON, ROOT

from prfaas.cli.vllmserve import vllm_command, vllm_environment
from prfaas.config.environment import read_environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Node
from prfaas.core.ids import ClusterName, Epoch, LinkName, NodeName, TransferId
from prfaas.model.text import prompt_hash
from prfaas.wire import ticket

LENGTHS = (1024, 3072)
MADE = 12
"""Tokens of an answer."""
START_S = 300
LINK = "direct"
"""Not in the topology, so not paced: what a hand-over inside one cluster is."""
CONNECTIONS = 4
LAYERS = """
import sys
from pathlib import Path
from tests.vllm import tiny

kind, layers = sys.argv[1], int(sys.argv[3])
tiny.COMMON["num_hidden_layers"] = layers
types = tiny.MODELS[kind].get("layer_types")
if types:
    tiny.MODELS[kind]["layer_types"] = (types * layers)[:layers]
tiny.make(kind, Path(sys.argv[2]))
"""
MOONCAKE_ON_CPU = '''
"""vLLM's MooncakeConnector, with the one function that it asks of an accelerator."""
import torch

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *_, **__: None
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnector


class MooncakeOnCpu(MooncakeConnector):
    pass
'''
NEEDS = {"nixl": "nixl._api", "mooncake": "mooncake.engine"}
"""What a connector imports."""
CONFIGS: dict[str, dict[str, Any]] = {
    "nixl": {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"},
    "mooncake": {
        "kv_connector": "MooncakeOnCpu",
        "kv_connector_module_path": "mooncake_on_cpu",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
    },
}


@dataclass(frozen=True, slots=True)
class Answer:
    """`ttft_s` from the first call; `moved_bytes` and `moving_s` are what the connector says, if it does."""

    ttft_s: float
    tokens: list[int]
    moved_bytes: int = 0
    moving_s: float = 0.0


@dataclass
class Servers:
    """Two servers with one connector. `far` prefills, `home` decodes; `gateway` is there for ours."""

    connector: str
    client: httpx2.AsyncClient
    far: Node
    home: Node
    bootstrap: int = 0
    gateway: str = ""
    peer: dict[str, Any] = field(default_factory=dict)
    """What the prefill side says of itself."""

    @property
    def ways(self) -> dict[str, Callable[[list[int]], Awaitable[Answer]]]:
        """By name; the first one is the direct one."""
        direct = {"prfaas": self.ours, "nixl": self.nixl, "mooncake": self.mooncake}[self.connector]
        ways: dict[str, Callable[[list[int]], Awaitable[Answer]]] = {self.connector: direct}
        return ways | ({"prfaas, gateway": self.through_gateway} if self.gateway else {})

    async def introduce(self) -> None:
        """Learn who the prefill side is."""
        if self.connector == "prfaas":
            self.peer = await self._control("GET", self.far, "node")
        elif self.connector == "mooncake":
            found = (await self.client.get(f"http://127.0.0.1:{self.bootstrap}/query")).json()
            self.peer = next(iter(found.values()))

    async def alone(self, node: Node, tokens: list[int], made: int) -> Answer:
        """One server does it all."""
        return await self._stream(f"http://{node.listen}", body_of(tokens, made), time.perf_counter())

    async def ours(self, tokens: list[int]) -> Answer:
        transfer, count = f"cmpl-{uuid4()}", len(tokens)
        began = time.perf_counter()
        room = {"transfer_id": transfer, "prompt_tokens": count, "lease_ms": 60_000}
        receiver = (await self._control("POST", self.home, "credit", room))["receiver"]
        shown = ticket.mint(
            SECRET.encode(),
            transfer=TransferId(transfer),
            epoch=Epoch(self.peer["epoch"]),
            node=NodeName(self.far.name),
            receiver=NodeName(receiver),
            link=LinkName(LINK),
            lifetime_s=600,
            now=time.time(),
        )
        leg = {"transfer_id": transfer, "link": LINK, "prompt_tokens": count, "deadline_ms": 60_000}
        away = {**leg, "do_remote_decode": True, "epoch": self.peer["epoch"]}
        here = {**leg, "do_remote_prefill": True, "remote": self.peer["data"], "ticket": shown}
        here |= {"connections": CONNECTIONS, "prompt_hash": prompt_hash(tokens)}
        answer = await self._both(tokens, {"prfaas": away}, {"prfaas": here}, began)
        sent = await self._control("GET", self.far, f"sent/{transfer}")
        assert sent["cause"] == "applied", sent
        return Answer(answer.ttft_s, answer.tokens, sent["bytes_moved"], sent["moving_ns"] / 1e9)

    async def mooncake(self, tokens: list[int]) -> Answer:
        transfer = {"transfer_id": f"xfer-{uuid4()}"}
        away = {**transfer, "do_remote_decode": True, "do_remote_prefill": False}
        here = {**transfer, "do_remote_decode": False, "do_remote_prefill": True}
        here |= {"remote_engine_id": self.peer["engine_id"]}
        here |= {"remote_bootstrap_addr": f"http://127.0.0.1:{self.bootstrap}"}
        return await self._both(tokens, away, here, time.perf_counter())

    async def nixl(self, tokens: list[int]) -> Answer:
        away: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
        away |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        began = time.perf_counter()
        here = (await self._prefill(tokens, away))["kv_transfer_params"]
        body = body_of(tokens, MADE, kv_transfer_params=here)
        return await self._stream(f"http://{self.home.listen}", body, began)

    async def through_gateway(self, tokens: list[int]) -> Answer:
        return await self._stream(self.gateway, body_of(tokens, MADE), time.perf_counter())

    async def _both(self, tokens: list[int], away: Any, here: Any, began: float) -> Answer:
        prefill = asyncio.create_task(self._prefill(tokens, away))
        body = body_of(tokens, MADE, kv_transfer_params=here)
        answer = await self._stream(f"http://{self.home.listen}", body, began)
        await prefill
        return answer

    async def _prefill(self, tokens: list[int], params: Any) -> dict[str, Any]:
        body = body_of(tokens, 1, stream=False, kv_transfer_params=params)
        answer = await self.client.post(f"http://{self.far.listen}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def _stream(self, url: str, body: dict[str, Any], began: float) -> Answer:
        first, tokens = 0.0, list[int]()
        async with self.client.stream("POST", url + "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in lines_of(answer):
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        tokens += choice["token_ids"] or []
                    if tokens and not first:
                        first = time.perf_counter()
        assert len(tokens) == body["max_tokens"], tokens
        return Answer(first - began, tokens)

    async def _control(self, method: str, node: Node, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self.client.request(method, f"http://{node.control_listen}/prfaas/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def lines_of(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Ended by a newline and nothing else: random text has other ends of lines in it."""
    rest = b""
    async for data in answer.aiter_raw():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


def body_of(tokens: list[int], made: int, **more: Any) -> dict[str, Any]:
    fixed = {"model": "m", "temperature": 0, "ignore_eos": True, "return_token_ids": True, "stream": True}
    return {"prompt": tokens, "max_tokens": made, **fixed, **more}


# The servers.


def text_of(model: Path, chunk: int) -> str:
    """The topology of the tests, with a link that neither delays nor throttles, and without prefix caches."""
    text = system_of.topology(model, more="--no-enable-prefix-caching", mbps=100_000)
    text = text.replace("chunk_tokens: 512", f"chunk_tokens: {chunk}").replace("emulate: true", "emulate: false")
    return text.replace("rtt: 4ms", "rtt: 100us")


@contextlib.contextmanager
def prfaas_up(text: str, state: Path) -> Iterator[tuple[Node, Node, str, Path]]:
    """`prfaas up`: its two nodes, its gateway's URL and the file that it wrote."""
    state.mkdir()
    with system_of.served(text, state) as system:
        nodes = {node.name: node for _, node in system.topology.nodes()}
        (file,) = state.glob("prfaas/runs/*/topology.yaml")
        yield nodes["far-prefill"], nodes["home-decode"], system.url, file


@contextlib.contextmanager
def stock(connector: str, file: Path, directory: Path) -> Iterator[tuple[Node, Node, int]]:
    """The servers of `file` with another connector: both nodes, and Mooncake's port."""
    directory.mkdir()
    (directory / "mooncake_on_cpu.py").write_text(MOONCAKE_ON_CPU)
    environ = {**os.environ, "PRFAAS_SECRET": SECRET}
    topology = read_topology(file)
    environment = read_environment(topology, environ)
    nodes: dict[str, Node] = {}
    ports = {"far-prefill": free_port(), "home-decode": free_port()}
    started: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as logs:
        try:
            for cluster, node in topology.nodes():
                nodes[node.name] = node
                command = vllm_command(topology, file, ClusterName(cluster), node, Path(topology.model), environ)
                command[command.index("--kv-transfer-config") + 1] = json.dumps(CONFIGS[connector])
                made = vllm_environment(node, environment, environ)
                made |= {"VLLM_HOST_IP": "127.0.0.1", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
                made |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
                made |= dict.fromkeys(
                    ("VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT"), str(ports[node.name])
                )
                made["PYTHONPATH"] = os.pathsep.join(filter(None, (str(directory), environ.get("PYTHONPATH"))))
                log = logs.enter_context((directory / f"{node.name}.log").open("wb"))
                started.append(
                    subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=made, start_new_session=True)
                )
            healthy(started, nodes, directory)
            yield nodes["far-prefill"], nodes["home-decode"], ports["far-prefill"]
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                end(process)


def healthy(started: list[subprocess.Popen[bytes]], nodes: dict[str, Node], directory: Path) -> None:
    """Waits for both."""
    give_up, left = time.monotonic() + START_S, set(nodes)
    while left:
        for process, name in zip(started, nodes, strict=True):
            tail = (directory / f"{name}.log").read_text(errors="replace")[-3000:]
            assert process.poll() is None, f"{name} ended:\n{tail}"
            assert time.monotonic() < give_up, f"{name} does not start:\n{tail}"
        for name in list(left):
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"http://{nodes[name].listen}/health", timeout=5).status_code == 200:
                    left.discard(name)
        time.sleep(0.5)


def end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def missing(connector: str) -> str:
    """Why a connector cannot be had, "" when it can."""
    if connector not in NEEDS:
        return ""
    asked = subprocess.run([PYTHON, "-c", f"import {NEEDS[connector]}"], capture_output=True, text=True, check=False)
    return "" if asked.returncode == 0 else asked.stderr.strip().splitlines()[-1]


# Measuring.


@dataclass
class Results:
    """All that was measured: seconds by (connector's servers, way, tokens)."""

    ttft: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    exposed: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    over: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    """TTFT over that of `prefill` in the same round."""
    moving: dict[int, list[float]] = field(default_factory=dict)
    rate: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    kv_bytes: dict[int, int] = field(default_factory=dict)
    answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    loads: dict[str, list[float]] = field(default_factory=dict)
    """The machine's load when a connector's servers began to be measured and when they had been, by connector."""
    compared: int = 0

    def check(self, tokens: int, nth: int, where: str, found: list[int]) -> None:
        """Raises AssertionError when that prompt was answered otherwise before."""
        expected = self.answers.setdefault((tokens, nth), found)
        assert found == expected, f"{where}, prompt {nth} of {tokens} tokens: {found}, not {expected}"
        self.compared += 1


async def measure(servers: Servers, repeat: int, concurrent: int, requests: int, results: Results) -> None:
    await servers.introduce()
    results.loads.setdefault(servers.connector, []).append(os.getloadavg()[0])
    for nth in range(-1, repeat):
        for length in LENGTHS:
            prompt = system_of.prompt(10 * length + nth)[:length]
            took = {}
            names = ["prefill", "decode", *servers.ways]
            for name in names[nth % len(names) :] + names[: nth % len(names)]:
                if name == "prefill":
                    answer = await servers.alone(servers.far, prompt, 1)
                elif name == "decode":
                    answer = await servers.alone(servers.home, prompt, MADE)
                else:
                    answer = await servers.ways[name](prompt)
                if len(answer.tokens) == MADE:
                    results.check(length, nth, f"{servers.connector}: {name}", answer.tokens)
                took[name] = answer.ttft_s
                if answer.moved_bytes:
                    results.kv_bytes[length] = answer.moved_bytes
                    if nth >= 0:
                        results.moving.setdefault(length, []).append(answer.moving_s)
            if nth < 0:
                continue
            for name, ttft_s in took.items():
                key = (servers.connector, name, length)
                results.ttft.setdefault(key, []).append(ttft_s)
                results.exposed.setdefault(key, []).append(ttft_s - took["prefill"])
                results.over.setdefault(key, []).append(ttft_s / took["prefill"])
    for turn in range(2):
        for name, ask in servers.ways.items():
            rate = await throughput(ask, concurrent, requests, results, f"{servers.connector}: {name}, concurrent")
            if turn:
                results.rate.setdefault((servers.connector, name), []).append(rate)
    results.loads[servers.connector].append(os.getloadavg()[0])


async def throughput(
    ask: Callable[[list[int]], Awaitable[Answer]], concurrent: int, requests: int, results: Results, where: str
) -> float:
    """Requests a second, so many at a time."""
    waiting = list(range(requests))
    length = LENGTHS[0]

    async def work() -> None:
        while waiting:
            nth = 1000 + waiting.pop()
            answer = await ask(system_of.prompt(10 * length + nth)[:length])
            results.check(length, nth, where, answer.tokens)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrent)))
    return requests / (time.perf_counter() - began)


async def drive(options: argparse.Namespace, results: Results, **servers: Any) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx2.AsyncClient(timeout=120, headers=headers) as client:
        await measure(Servers(client=client, **servers), options.repeat, options.concurrent, options.requests, results)


def run(options: argparse.Namespace, model: Path, work: Path) -> Iterator[dict[str, Any]]:
    """The report, anew after each connector."""
    results, missed = Results(), {name: why for name in options.connectors if (why := missing(name))}
    for name, why in missed.items():
        print(f"{name} is left out: {why}", flush=True)
    for nth in range(options.passes):
        print(f"pass {nth + 1}: prfaas ...", flush=True)
        with prfaas_up(text_of(model, options.max_batch), work / f"prfaas-{nth}") as (far, home, gateway, file):
            asyncio.run(drive(options, results, connector="prfaas", far=far, home=home, gateway=gateway))
        for name in options.connectors:
            if name in missed or name == "prfaas":
                continue
            print(f"pass {nth + 1}: {name} ...", flush=True)
            try:
                with stock(name, file, work / f"{name}-{nth}") as (far, home, port):
                    asyncio.run(drive(options, results, connector=name, far=far, home=home, bootstrap=port))
            except (AssertionError, httpx2.HTTPError) as error:
                missed[name] = f"{type(error).__name__}: {error}"
                print(f"{name} failed: {missed[name]}", flush=True)
            yield report_of(options, results, missed, nth + 1)


# The report.


def report_of(options: argparse.Namespace, results: Results, missed: dict[str, str], passes: int) -> dict[str, Any]:
    rows = []
    for (connector, way, tokens), ttfts in results.ttft.items():
        exposed = statistics.median(results.exposed[connector, way, tokens])
        row: dict[str, Any] = {
            "servers": connector,
            "way": way,
            "tokens": tokens,
            "ttft_s": statistics.median(ttfts),
            "ttft_best_s": min(ttfts),
            "ttft_over_prefill": statistics.median(results.over[connector, way, tokens]),
            "runs": ttfts,
        }
        if way not in ("prefill", "decode"):
            row["exposed_s"] = exposed
            row["goodput_mb_s"] = results.kv_bytes[tokens] / exposed / 1e6 if exposed > 0 else None
            row["requests_s"] = statistics.median(results.rate.get((connector, way), [0]))
        rows.append(row)
    ways = {(row["way"], row["tokens"]): row for row in rows}
    ratios: dict[str, float] = {}
    others = [name for name in ("mooncake", "nixl") if (name, LENGTHS[0]) in ways]
    for tokens in LENGTHS:
        ours = ways["prfaas", tokens]
        for name in others:
            its = ways[name, tokens]
            for which in ("ttft", "ttft_best"):
                ratios[f"{name}_over_ours_{which}_{tokens}"] = its[f"{which}_s"] / ours[f"{which}_s"]
            key = f"{name}_over_ours_ttft_over_prefill_{tokens}"
            ratios[key] = its["ttft_over_prefill"] / ours["ttft_over_prefill"]
            if ours["exposed_s"] > 0 and its["exposed_s"] > 0:
                ratios[f"ours_over_{name}_goodput_{tokens}"] = its["exposed_s"] / ours["exposed_s"]
        ratios[f"gateway_over_direct_ttft_{tokens}"] = ways["prfaas, gateway", tokens]["ttft_s"] / ours["ttft_s"]
    for name in others:
        its_rate = ways[name, LENGTHS[0]]["requests_s"]
        if its_rate:
            ratios[f"ours_over_{name}_requests_s"] = ways["prfaas", LENGTHS[0]]["requests_s"] / its_rate
    return {
        "model": str(options.model.name) if options.model else f"tiny {options.kind}, {options.layers} layers, float32",
        "cores": os.cpu_count(),
        "repeat": options.repeat,
        "passes": passes,
        "concurrent": options.concurrent,
        "step_tokens": options.max_batch,
        "kv_mib": {str(tokens): size / 2**20 for tokens, size in results.kv_bytes.items()},
        "ours_moving_s": {str(tokens): statistics.median(took) for tokens, took in results.moving.items()},
        "load_averages": results.loads,
        "answers_compared": results.compared,
        "left_out": missed,
        "rows": rows,
        "ratios": ratios,
    }


def show(report: dict[str, Any]) -> None:
    print(f"{report['model']}; {report['answers_compared']} answers, all equal")
    for row in report["rows"]:
        text = f"{row['servers']:<9} {row['way']:<16} {row['tokens']:5} tokens  TTFT {row['ttft_s'] * 1000:7.1f} ms"
        text += f" (best {row['ttft_best_s'] * 1000:6.1f})"
        if "exposed_s" in row:
            goodput = f"{row['goodput_mb_s']:6.0f} MB/s" if row["goodput_mb_s"] else "     all hidden"
            text += f"  exposed {row['exposed_s'] * 1000:7.1f} ms  {goodput}  {row['requests_s']:.2f} requests/s"
        print(text)
    for name, ratio in report["ratios"].items():
        print(f"{name:<36} {ratio:.3f}")


def chart(report: dict[str, Any], file: Path) -> None:
    """Bars of TTFT by way: prefill alone, and what comes on top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, every = pyplot.subplots(1, len(LENGTHS), figsize=(11, 3.2), layout="constrained")
    for axes, tokens in zip(every, LENGTHS, strict=True):
        rows = [row for row in report["rows"] if row["tokens"] == tokens and "exposed_s" in row]
        names = [row["way"] for row in rows]
        exposed = [max(0.0, row["exposed_s"]) * 1000 for row in rows]
        rest = [row["ttft_s"] * 1000 - more for row, more in zip(rows, exposed, strict=True)]
        axes.barh(names, rest, label="prefill", color="#1d4ed8")
        axes.barh(names, exposed, left=rest, label="exposed transfer and first step", color="#c2410c")
        for y, row in enumerate(rows):
            axes.text(row["ttft_s"] * 1000, y, f"  {row['ttft_s'] * 1000:.0f} ms", va="center")
        axes.invert_yaxis()
        axes.set_xlabel("time to first token, ms")
        axes.set_xlim(0, max(row["ttft_s"] for row in rows) * 1250)
        axes.set_title(f"{tokens} tokens, {report['kv_mib'][str(tokens)]:.1f} MiB of KV")
    every[0].legend(loc="lower right", fontsize="small")
    figure.suptitle(f"{report['model']}, vLLM on CPUs, loopback")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="gemma3", help="of tests/vllm/tiny.py: gemma3 or falcon_h1")
    parser.add_argument("--model", type=Path, help="a checkpoint's directory, instead")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5, help="rounds in a pass, after one that is not counted")
    parser.add_argument("--passes", type=int, default=2, help="each starts every connector's servers once")
    parser.add_argument("--concurrent", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--max-batch", type=int, default=512, help="tokens in a step")
    parser.add_argument("--connectors", nargs="*", default=["mooncake", "nixl"], help="to compare ours with")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        model = options.model
        if model is None:
            model = work / options.kind
            command = [PYTHON, "-c", LAYERS, options.kind, str(model), str(options.layers)]
            subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        for report in run(options, model.absolute(), work):
            show(report)
            if options.json:
                options.json.write_text(json.dumps(report, indent=1) + "\n")
            if options.chart:
                chart(report, options.chart)


if __name__ == "__main__":
    main()
