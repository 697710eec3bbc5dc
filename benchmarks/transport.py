"""Goodput of the TCP transport on loopback, against plain blocking sockets in the same run.

Two processes. Both ways move the same bytes into fresh memory of the whole size; ours also frames, verifies, books and
acknowledges them. Prints the ratio; `--json` gives all figures.

    PYTHONPATH=src python benchmarks/transport.py [--mib 512] [--repeat 3] [--uvloop] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from typing import Any

import uvloop

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.core.transfer.extent import Extent
from prfaas.transport.base import Peer
from prfaas.transport.tcp import TcpTransport
from prfaas.wire.ticket import mint

KIB, MIB = 1 << 10, 1 << 20
SECRET = b"only for measuring, on loopback"
LINK = LinkName("far->home")
ROW_BYTES = 4 * KIB
CASES = [(connections, extent) for connections in (1, 4) for extent in (64 * KIB, MIB, 16 * MIB)]


def layout_of(total: int) -> tuple[KVLayout, int]:
    """Four parts of `total` bytes in all, and the tokens that make it so."""
    parts = tuple(Part(layer, "kv", PartKind.TOKENS, (8, 256), "bfloat16") for layer in range(4))
    return KVLayout("benchmark", parts), total // 4 // ROW_BYTES


# The sending process: lines of JSON in, lines of JSON out.


async def serve() -> None:
    far = TcpTransport(NodeName("far"), Epoch(1), SECRET)
    peer = await far.listen("127.0.0.1", 0)
    plain = socket.create_server(("127.0.0.1", 0), backlog=16)
    print(json.dumps({"port": peer.port, "plain": plain.getsockname()[1]}), flush=True)
    data = memoryview(bytes(64 * MIB))
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "transfer" in order:
            layout, tokens = layout_of(order["total"])
            sending = far.offer(TransferId(order["transfer"]), layout, tokens, LINK, 60 * 10**9)
            step = order["extent"] // ROW_BYTES
            for part in layout.parts:
                for start in range(0, tokens, step):
                    stop = min(start + step, tokens)
                    extent = Extent(part.layer, part.name, start, stop, (0, 8))
                    sending.put(extent, data[: (stop - start) * ROW_BYTES])
            sending.finish()
        else:
            await asyncio.to_thread(send_plain, plain, data, order)
    await far.close()
    plain.close()


def send_plain(server: socket.socket, data: memoryview, order: dict[str, int]) -> None:
    share = order["total"] // order["connections"]

    def send(connection: socket.socket) -> None:
        with connection:
            left = share
            while left:
                step = min(left, order["extent"])
                connection.sendall(data[:step])
                left -= step

    threads = [threading.Thread(target=send, args=(server.accept()[0],)) for _ in range(order["connections"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# The receiving process.


def receive_plain(port: int, connections: int, total: int) -> float:
    share = total // connections
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    begun = time.perf_counter()

    def receive(connection: socket.socket) -> None:
        view = memoryview(bytearray(share))
        with connection:
            while view:
                view = view[connection.recv_into(view) :]

    threads = [threading.Thread(target=receive, args=(one,)) for one in sockets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total / (time.perf_counter() - begun)


async def receive_ours(
    home: TcpTransport, child: Process, peer: Peer, name: str, connections: int, extent: int, total: int
) -> float:
    layout, tokens = layout_of(total)
    ticket = mint(
        SECRET,
        transfer=TransferId(name),
        epoch=Epoch(1),
        node=NodeName("far"),
        receiver=NodeName("home"),
        link=LINK,
        lifetime_s=60,
        now=time.time(),
    )
    tell(child, {"transfer": name, "extent": extent, "total": total})
    begun = time.perf_counter()
    receiving = home.receive(
        TransferId(name),
        layout,
        tokens,
        [peer],
        ticket,
        held=0,
        connections=connections,
        link=LINK,
        deadline_ns=time.monotonic_ns() + 120 * 10**9,
    )
    await receiving.landed()
    took = time.perf_counter() - begun
    receiving.applied()
    await receiving.ended()
    return total / took


def tell(child: Process, order: dict[str, Any]) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(order).encode() + b"\n")


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    extra = ["--uvloop"] if args.uvloop else []
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", *extra, stdin=PIPE, stdout=PIPE)
    assert child.stdout is not None
    ports = json.loads(await child.stdout.readline())
    peer, total = Peer("127.0.0.1", ports["port"]), args.mib * MIB
    home = TcpTransport(NodeName("home"), Epoch(2), SECRET)
    results = []
    for connections, extent in CASES:
        await receive_ours(home, child, peer, f"warm {connections} {extent}", connections, extent, 16 * MIB)
        plain, ours = [], []
        for turn in range(args.repeat):
            tell(child, {"connections": connections, "extent": extent, "total": total})
            plain.append(await asyncio.to_thread(receive_plain, ports["plain"], connections, total))
            name = f"{turn} {connections} {extent}"
            ours.append(await receive_ours(home, child, peer, name, connections, extent, total))
        case = {"connections": connections, "extent_kib": extent // KIB, "plain_gb_s": max(plain) / 1e9}
        results.append({**case, "ours_gb_s": max(ours) / 1e9, "ratio": max(ours) / max(plain)})
        if not args.json:
            print("{connections} connections, {extent_kib:6} KiB extents: plain {plain_gb_s:.2f} GB/s, "
                  "ours {ours_gb_s:.2f} GB/s, ratio {ratio:.2f}".format(**results[-1]), flush=True)  # fmt: skip
    await home.close()
    assert child.stdin is not None
    child.stdin.close()
    await child.wait()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="bytes of one transfer, in MiB")
    parser.add_argument("--repeat", type=int, default=3, help="of which the best counts, for both ways")
    parser.add_argument("--uvloop", action="store_true", help="run ours on uvloop")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if args.uvloop else None) as runner:
        if args.serve:
            runner.run(serve())
            return
        results = runner.run(measure(args))
    if args.json:
        print(json.dumps({"uvloop": args.uvloop, "mib": args.mib, "cases": results}, indent=2))


if __name__ == "__main__":
    main()
