"""A prefill and a decode engine, each a `rig` process, and what a gateway would do between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.freeports import free_port

from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.model.text import prompt_hash
from prfaas.wire import ticket

ROOT = Path(__file__).parents[2]
SECRET = "a secret of the tests, and long enough to be one"
LINK = "far->home"
PYTHON = os.environ.get("PRFAAS_VLLM_PYTHON", sys.executable)


class Rig:
    """One engine. `events` by request, others by kind."""

    def __init__(self, name: str, config: dict[str, Any], core: str, log: Path) -> None:
        self.name, self._config, self._core, self.log = name, config, core, log
        self.ready: dict[str, Any] = {}

    async def start(self) -> None:
        env = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PRFAAS_SECRET": SECRET,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": self._core,
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        self._ends: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(PYTHON, "-m", "tests.vllm.rig", json.dumps(self._config)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=env,
                limit=1 << 24,
            )
        self._reader = asyncio.create_task(self._read(self._ends, self._said))
        self.ready = await self._said.get()
        assert self.ready["said"] == "ready", f"{self.name}: see {self.log}\n{self.tail()}"

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def add(self, name: str, tokens: list[int], max_tokens: int, params: Any = None) -> asyncio.Future[dict[str, Any]]:
        self._ends[name] = asyncio.get_running_loop().create_future()
        self.tell(do="add", id=name, tokens=tokens, max_tokens=max_tokens, params=params)
        return self._ends[name]

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        said = await self._said.get()
        if said["said"] == "gone":
            self._said.put_nowait(said)  # for whoever asks next
            raise RuntimeError(f"{self.name} is gone; {self.log}\n{self.tail()}")
        return said

    async def settled(self, within_s: float = 20) -> dict[str, Any]:
        """Its state once it has nothing left to do. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while True:
                state = await self.ask(do="state")
                if state["requests"] == 0:
                    return state
                await asyncio.sleep(0.02)

    async def close(self, kill: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError, ConnectionError):
            if kill:
                self.process.kill()
            else:
                self.tell(do="quit")
            async with asyncio.timeout(20):
                await self.process.wait()

    async def _read(self, ends: dict[str, asyncio.Future[dict[str, Any]]], said: asyncio.Queue[dict[str, Any]]) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            heard = json.loads(line)
            if heard["said"] == "end":
                end = ends.pop(heard["id"])
                if not end.done():
                    end.set_result(heard)
            else:
                said.put_nowait(heard)
        said.put_nowait({"said": "gone"})
        for end in ends.values():
            if not end.done():
                end.set_result({"said": "gone", "finish": "gone", "tokens": []})


class Pair:
    """`far` prefills, `home` decodes."""

    def __init__(self, model: Path, directory: Path, **config: Any) -> None:
        first = free_port(6)  # of each: KV of two ranks, and control
        self._ports = {"far": (first, first + 2), "home": (first + 3, first + 5)}
        self._file = directory / "topology.yaml"
        self._directory = directory
        self._file.write_text(self._topology(model))
        each = {name: config.pop(name, {}) for name in ("far", "home")}
        extra = config.pop("extra", {})
        base = {
            "model": str(model),
            "max_model_len": 4096,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "max_num_batched_tokens": 1024,
            "disable_log_stats": False,
            **config,
        }

        def rig(at: int, name: str) -> Rig:
            made = {**base, **each[name], "kv_transfer_config": self._connector(name, extra.get(name, {}))}
            cores = "0|1" if made.get("tensor_parallel_size") == 2 else str(at)
            return Rig(name, made, cores, directory / name)

        self.far, self.home = rig(0, "far"), rig(1, "home")
        self._serial = 0

    def _topology(self, model: Path) -> str:
        def node(name: str, role: str) -> str:
            data, control = self._ports[name]
            return (
                f"      - name: {name}-node\n        role: {role}\n        engine: {{kind: vllm, device: cpu}}\n"
                f"        data_listen: 127.0.0.1:{data}\n        control_listen: 127.0.0.1:{control}\n"
            )

        return (
            f"model: {model}\nserved_name: m\nclusters:\n  home:\n    kind: pd\n    nodes:\n{node('home', 'decode')}"
            f"  far:\n    kind: prfaas\n    nodes:\n{node('far', 'prefill')}"
            "links:\n  - {from: far, to: home, bandwidth: 1Gbps, rtt: 1ms}\n"
            "limits: {leases: {transfer: 3s}}\n"
        )

    def _connector(self, name: str, more: dict[str, Any]) -> dict[str, Any]:
        extra = {"topology": str(self._file), "cluster": name, "node": f"{name}-node", **more}
        return {
            "kv_connector": "PrfaasConnector",
            "kv_connector_module_path": "prfaas.engine.vllm.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": extra,
        }

    async def start(self) -> None:
        await asyncio.gather(self.far.start(), self.home.start())
        said = await self.control("far", "GET", "node")
        self.epoch, self._remote = said["epoch"], said["data"]
        self._receivers = len((await self.control("home", "GET", "node"))["data"])
        await self.pace(10**11)

    async def pace(self, rate_bps: int) -> None:
        lease = {"link": LINK, "rate_bps": rate_bps, "lease_ms": 600_000, "fence": int(time.time() * 1e6)}
        await self.control("far", "POST", "pace", lease)

    async def close(self) -> None:
        await asyncio.gather(self.far.close(), self.home.close())

    async def control(self, name: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._ports[name][1]}/prfaas/v1/{path}"
        data = json.dumps(body).encode() if body is not None else None
        asked = urllib.request.Request(url, data, {"Authorization": f"Bearer {SECRET}"}, method=method)

        def send() -> dict[str, Any]:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return json.loads(answer.read())

        return await asyncio.to_thread(send)

    def name(self) -> str:
        self._serial += 1
        return f"t{self._serial}"

    def prefill(self, transfer: str, tokens: list[int], **more: Any) -> asyncio.Future[dict[str, Any]]:
        leg = {"transfer_id": transfer, "do_remote_decode": True, "link": LINK, "prompt_tokens": len(tokens)}
        leg |= {"epoch": self.epoch, "receivers": self._receivers}
        return self.far.add(transfer, tokens, 8, {"prfaas": {**leg, **more}})

    def decode(
        self, transfer: str, tokens: list[int], max_tokens: int = 12, **more: Any
    ) -> asyncio.Future[dict[str, Any]]:
        leg = {
            "transfer_id": transfer,
            "do_remote_prefill": True,
            "link": LINK,
            "remote": self._remote,
            "ticket": self.ticket(transfer),
            "connections": 2,
            "prompt_tokens": len(tokens),
            "prompt_hash": prompt_hash(tokens),
            "deadline_ms": 60_000,
            "receivers": self._receivers,
        }
        return self.home.add(transfer, tokens, max_tokens, {"prfaas": {**leg, **more}})

    def ticket(self, transfer: str) -> str:
        return ticket.mint(
            SECRET.encode(),
            transfer=TransferId(transfer),
            epoch=Epoch(self.epoch),
            node=NodeName("far-node"),
            receiver=NodeName("home-node"),
            link=LinkName(LINK),
            lifetime_s=600,
            now=time.time(),
        )

    async def handed_over(self, tokens: list[int], max_tokens: int = 12) -> dict[str, Any]:
        """The decode side's answer; both legs at once."""
        transfer = self.name()
        prefill = self.prefill(transfer, tokens)
        end = await self.decode(transfer, tokens, max_tokens)
        await prefill
        return {**end, "sent": await self.control("far", "GET", f"sent/{transfer}")}
