"""What only real sockets and processes show: reuse, death without a word, TLS."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from prfaas.core.errors import PeerFailure
from prfaas.testing.conformance import SECOND, Pair, failure
from prfaas.testing.kv import Content, plain_layout
from prfaas.testing.rigs import StreamRig
from prfaas.transport.base import Peer
from prfaas.transport.stream.pool import _hung_up
from prfaas.transport.stream.sending import StreamSending
from prfaas.transport.stream.transport import StreamTransport
from prfaas.wire.messages import Applied


def open_files() -> int:
    """File descriptors of this process; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


SENDER = """
import asyncio
from prfaas.testing.conformance import LINK, SECOND, SECRET
from prfaas.testing.kv import Content, plain_layout
from prfaas.transport.tcp import TcpTransport

async def main():
    far = TcpTransport("far0", 1, SECRET)
    peer = await far.listen("127.0.0.1", 0)
    print(peer.port, flush=True)
    layout = plain_layout(layers=4)
    sending = far.offer("r.0", layout, 1000, LINK, 60 * SECOND)
    for extent, data in Content(layout, 1000).pieces(100_000)[:-1]:
        sending.put(extent, data)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_sender_ends_the_receiver_quickly(rig: StreamRig) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SENDER, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        pair = await Pair.make(rig)
        pair.layout = plain_layout(layers=4)
        receiving = pair.receive("r.0", 1000, remote=[Peer("127.0.0.1", port)])
        await rig.received(pair.home, Content(pair.layout, 1000).size() // 2)
        process.send_signal(signal.SIGKILL)
        begun = rig.now_ns()
        error = await failure(receiving)
        assert isinstance(error, PeerFailure)
        assert error.code == "unreachable"
        # Not by the sender's lease, nor by the deadline: a minute each.
        assert rig.now_ns() - begun < 20 * SECOND
        assert pair.home.in_use == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_thousand_transfers_use_a_handful_of_sockets(pair: Pair, rig: StreamRig) -> None:
    content = Content(pair.layout, 10)
    await pair.move("first", content, connections=2)
    gc.collect()
    before = open_files()
    for number in range(1000):
        await pair.move(f"r{number}.0", content, connections=2)
    assert rig.dialled(pair.home) <= 4
    assert open_files() <= before + 4
    for transport in (pair.far, pair.home):
        assert isinstance(transport, StreamTransport)
        assert len(transport.connections) <= 4


async def test_nothing_waits_for_a_transfer_whose_lanes_have_all_ended(pair: Pair) -> None:
    """A transfer that is over waits, with a timer, for lanes that have yet to say APPLIED: not when all have."""
    await pair.move("r.0", Content(pair.layout, 500), connections=4)
    assert isinstance(pair.far, StreamTransport)
    # Each of the four connections waits for its next HELLO, and nothing else waits.
    async with asyncio.timeout(10):
        while pair.far.greeter.waiting < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert len(pair.far.alarm._agenda) == 4


async def test_more_than_a_chunk_in_every_way(pair: Pair) -> None:
    """Extents beyond a megabyte are cut, and many small ones leave together."""
    pair.layout = plain_layout(layers=1, heads=8, width=128)
    content = Content(pair.layout, 3000)  # 6 MiB a part
    for number, limit in enumerate([1 << 30, 2048]):
        sending, receiving = pair.offer(f"r{number}.0", 3000), pair.receive(f"r{number}.0", 3000, connections=4)
        for extent, data in content.pieces(limit):
            sending.put(extent, data)
        sending.finish()
        await pair.settle(sending, receiving, content)


async def test_connections_that_break_as_a_transfer_ends_are_nobodys_trouble(pair: Pair) -> None:
    """They are closing already when they are put aside: the transfer that is over must not hear of their end."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    content = Content(pair.layout, 500)
    sending, receiving = pair.offer("r.0", 500), pair.receive("r.0", 500, connections=4)
    for extent, data in content.pieces(4096):
        sending.put(extent, data)
    sending.finish()
    await receiving.landed()
    assert isinstance(pair.home, StreamTransport)
    connections = pair.home.connections
    assert len(connections) == 4
    for connection in connections:
        connection.reset()
    receiving.applied()
    await asyncio.gather(*(connection.closed for connection in connections))
    await asyncio.sleep(0)
    assert failures == []
    assert (await receiving.ended()).cause == "applied"
    assert (await sending.released()).cause == "applied"


async def test_connections_that_break_as_applied_is_read_are_not_kept_for_the_next_transfer(pair: Pair) -> None:
    """The listening side's turn: an answer to the PING before APPLIED finds the connection broken."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    content = Content(pair.layout, 500)
    sending, receiving = pair.offer("r.0", 500), pair.receive("r.0", 500, connections=4)
    for extent, data in content.pieces(4096):
        sending.put(extent, data)
    sending.finish()
    await receiving.landed()
    await sending.released()
    assert isinstance(pair.far, StreamTransport)
    assert isinstance(sending, StreamSending)
    connections = pair.far.connections
    assert len(connections) == 4
    for connection in connections:
        connection.reset()
        sending.on_frame(connection, Applied())
    await asyncio.gather(*(connection.closed for connection in connections))
    await asyncio.sleep(0)
    assert failures == []
    assert pair.far.connections == ()
    assert pair.far.greeter.waiting == 0
    receiving.applied()
    assert (await receiving.ended()).cause == "applied"


async def test_a_connection_that_the_peer_has_just_reset_can_be_hung_up(pair: Pair) -> None:
    """The kernel knows and the event loop has not looked: half-closing fails then, and all else is still to be done."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        receiving = pair.receive("r.0", 500, remote=[Peer("127.0.0.1", listener.getsockname()[1])], connections=2)
        accepted = [(await loop.sock_accept(listener))[0] for _ in range(2)]
        assert isinstance(pair.home, StreamTransport)
        for one in accepted:
            assert await loop.sock_recv(one, 1)
        for one in accepted:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        receiving.cancel("cancelled", "the decode leg ended")
        assert (await receiving.ended()).cause == "cancelled"
        assert pair.home.in_use == 0


def test_the_kernel_is_asked_whether_an_idle_connection_is_alive() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert not _hung_up(near.fileno())
        far.sendall(b"left over")
        assert not _hung_up(near.fileno())
        far.close()
        assert _hung_up(near.fileno())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_tls(rig: StreamRig, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    await asyncio.to_thread(
        subprocess.run,
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    far = await rig.transport("far0", server_tls=server)
    pair = Pair(rig, far, await rig.transport("home0", client_tls=client))
    content = Content(pair.layout, 3000)
    for number in range(5):
        await pair.move(f"r{number}.0", content, connections=2)
    assert rig.dialled(pair.home) == 2
    plain = Pair(rig, far, await rig.transport("home0"))
    assert isinstance(await failure(plain.receive("r.x", 100, within_ns=5 * SECOND)), PeerFailure)
    sending, receiving = pair.offer("r.a", 100), pair.receive("r.a", 100)
    sending.abort("engine", "broke")
    assert (await failure(receiving)).code in ("engine", "ended")
