"""The index of prefixes against `ai-dynamo-runtime`'s `dynamo._core.RadixTree`, and hashing, in the same run.

Both get one million blocks as prompts of 2,048 blocks (128K tokens), 64 blocks an event, and then the same questions:
the whole prompt held, half of it held, nothing held; once with one holder, once with eight that hold different
lengths of every prompt. Hashes are given, for both. Events come as bytes, as each reads them: JSON for the tree (whose
encoding is not counted), 8 bytes a hash for the index, as heads exchange them. Each side runs in a process of its own,
in turn, `--passes` times; of every figure the best pass counts. Memory is what the process grows by, with hashes made
from bytes, so that none is shared with the question. Rates are by the processor's time of the whole process, so that
what else the machine does counts for neither; questions are by the wall.

Then what the index is fed with, by ours alone: vLLM's events of engine blocks of 64 and 16 tokens, from their frames
(read, hashed, mapped, indexed; a tenth of the prompts), and a head's snapshot, from index to index by its pages.

    PYTHONPATH=src python -m benchmarks.index [--prompts 488] [--asks 3000] [--passes 3] [--json FILE]

$PRFAAS_DYNAMO_PYTHON is an interpreter that has `ai-dynamo-runtime` 1.6.1; without one only ours is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

CHAIN = 2048
EVENT = 64
HOLDERS = 8
PYTHON = os.environ.get("PRFAAS_DYNAMO_PYTHON", "")


class Ours:
    """The index, fed as the exchange between heads feeds it."""

    def __init__(self) -> None:
        from prfaas.core.ids import ClusterName, Epoch, NodeName
        from prfaas.core.index.index import PrefixIndex
        from prfaas.core.index.places import Place

        self.index = PrefixIndex()
        self.places = [Place(ClusterName("c"), NodeName(f"n{number}")) for number in range(HOLDERS)]
        for place in self.places:
            self.index.open(place, Epoch(1))

    @staticmethod
    def event(number: int, parent: int | None, hashes: array[int]) -> tuple[int | None, bytes]:
        return parent, hashes.tobytes()

    def stored(self, holder: int, event: tuple[int | None, bytes]) -> None:
        hashes = array("Q")
        hashes.frombytes(event[1])
        self.index.stored(self.places[holder], hashes, event[0])

    @staticmethod
    def removal(number: int, hashes: array[int]) -> bytes:
        return hashes.tobytes()

    def removed(self, holder: int, event: bytes) -> None:
        hashes = array("Q")
        hashes.frombytes(event)
        self.index.removed(self.places[holder], hashes)

    def ask(self, chain: list[int]) -> Any:
        return self.index.usable(chain)

    def lengths(self, answer: Any) -> dict[int, int]:
        return {self.places.index(found.place): found.tokens // 64 for found in answer.held}

    def drop(self, holder: int) -> None:
        self.index.close(self.places[holder])

    def more(self) -> dict[str, float]:
        return {"said_mib": round(self.index.memory_bytes() / 2**20, 1), "runs": self.index.runs}


class Tree:
    """Dynamo's radix tree, fed as its own indexer feeds it."""

    def __init__(self) -> None:
        from dynamo._core import RadixTree

        self.tree = RadixTree()

    @staticmethod
    def event(number: int, parent: int | None, hashes: array[int]) -> bytes:
        blocks = [{"block_hash": one, "tokens_hash": one} for one in hashes]
        return json.dumps({"event_id": number, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}).encode()

    def stored(self, holder: int, event: bytes) -> None:
        self.tree.apply_event(holder, event)

    @staticmethod
    def removal(number: int, hashes: array[int]) -> bytes:
        return json.dumps({"event_id": number, "data": {"removed": {"block_hashes": list(hashes)}}}).encode()

    def removed(self, holder: int, event: bytes) -> None:
        self.tree.apply_event(holder, event)

    def ask(self, chain: list[int]) -> Any:
        return self.tree.find_matches(chain)

    def lengths(self, answer: Any) -> dict[int, int]:
        return {worker[0]: blocks for worker, blocks in answer.scores.items()}

    def drop(self, holder: int) -> None:
        self.tree.remove_worker(holder)

    def more(self) -> dict[str, float]:
        return {}


SIDES: dict[str, Any] = {"prfaas": Ours, "dynamo": Tree}


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def told(side: Any, chains: list[array[int]], holder: int, blocks: int) -> float:
    """Seconds in which `holder` got the first `blocks` blocks of each prompt."""
    spent, number = 0.0, 0
    for chain in chains:
        events = []
        for first in range(0, blocks, EVENT):
            parent = chain[first - 1] if first else None
            events.append(side.event(number, parent, chain[first : min(blocks, first + EVENT)]))
            number += 1
        began = time.process_time()
        for event in events:
            side.stored(holder, event)
        spent += time.process_time() - began
    return spent


def asked(side: Any, chains: list[array[int]], asks: int, expected: dict[int, int] | None) -> dict[str, float]:
    """P50 and P99, microseconds, of `asks` questions about prompts by chance."""
    chance = random.Random(2)
    took = []
    for _ in range(asks):
        chain = chance.choice(chains).tolist()
        began = time.perf_counter_ns()
        answer = side.ask(chain)
        took.append(time.perf_counter_ns() - began)
        if expected is not None:
            assert side.lengths(answer) == expected, (side.lengths(answer), expected)
    took.sort()
    return {"p50_us": took[len(took) // 2] / 1e3, "p99_us": took[len(took) * 99 // 100] / 1e3}


def measure(name: str, prompts: int, asks: int) -> dict[str, Any]:
    """One side, once."""
    chance = random.Random(1)
    chains = [array("Q", [chance.getrandbits(64) for _ in range(CHAIN)]) for _ in range(prompts)]
    missing = [array("Q", [chance.getrandbits(64) for _ in range(CHAIN)]) for _ in range(50)]
    halves = [chain[: CHAIN // 2] + other for chain, other in zip(chains, missing, strict=False)]
    halves = [half[:CHAIN] for half in halves]
    side = SIDES[name]()
    before = resident_bytes()
    took_s = told(side, chains, 0, CHAIN)
    side.ask(chains[0].tolist())  # whatever it does on a thread of its own is done
    blocks = prompts * CHAIN
    found: dict[str, Any] = {
        "stored_blocks_per_s": blocks / took_s,
        "mib_per_million_blocks": (resident_bytes() - before) / 2**20 / blocks * 1e6,
        "hit": asked(side, chains, asks, {0: CHAIN}),
        "half": asked(side, halves, asks, {0: CHAIN // 2}),
        "miss": asked(side, missing, asks, {}),
    } | side.more()
    lengths = {holder: CHAIN - holder * CHAIN // HOLDERS for holder in range(HOLDERS)}
    took_s = sum(told(side, chains, holder, lengths[holder]) for holder in range(1, HOLDERS))
    found["stored_again_blocks_per_s"] = prompts * sum(list(lengths.values())[1:]) / took_s
    found["hit_8_holders"] = asked(side, chains, asks, lengths)
    began = time.process_time()
    side.drop(HOLDERS - 1)
    side.ask(missing[0].tolist())
    found["drop_blocks_per_s"] = prompts * lengths[HOLDERS - 1] / (time.process_time() - began)
    few = chains[: max(1, prompts // 8)]
    ends = [side.removal(at, chain[CHAIN - 1 - at : CHAIN - at]) for chain in few for at in range(CHAIN // 2)]
    began = time.process_time()
    for event in ends:
        side.removed(0, event)
    side.ask(missing[0].tolist())
    found["removed_events_per_s"] = len(ends) / (time.process_time() - began)
    return found


def followed(block_tokens: int, prompts: int) -> dict[str, float]:
    """vLLM's events, 4,096 tokens each, from frames to the index; and what map and index weigh."""
    from prfaas.cluster.enginemap import EngineMap
    from prfaas.core.ids import ClusterName, Epoch, NodeName
    from prfaas.core.index.changes import apply
    from prfaas.core.index.index import PrefixIndex
    from prfaas.core.index.places import Place
    from prfaas.model.blockhash import CacheKey
    from prfaas.wire.kvevents import BlocksStored, KVEvents, decode, encode

    chance, root = random.Random(4), CacheKey("model").root()
    index, place = PrefixIndex(), Place(ClusterName("c"), NodeName("n"))
    index.open(place, Epoch(1))
    engine = EngineMap(place, lambda salt, adapter: root)
    spent, blocks, before = 0.0, prompts * CHAIN, resident_bytes()
    for _ in range(prompts):
        frames, parent = [], None
        for number in range(CHAIN // EVENT):
            ids = tuple(chance.randrange(150_000) for _ in range(EVENT * 64))
            hashes = tuple(chance.getrandbits(64) for _ in range(EVENT * 64 // block_tokens))
            event = BlocksStored(hashes, parent, ids, block_tokens, "GPU")
            frames.append(encode("n", KVEvents(number, 1.0, (event,))))
            parent = hashes[-1]
        began = time.process_time()
        for each in frames:
            for change in engine.changes(decode(each).events):
                apply(index, change)
        spent += time.process_time() - began
    assert index.blocks == blocks
    grown = (resident_bytes() - before) / 2**20 / blocks * 1e6
    return {"blocks_per_s": blocks / spent, "tokens_per_s": blocks * 64 / spent, "mib_per_million_blocks": grown}


def mirrored(prompts: int) -> dict[str, float]:
    """A head's snapshot of one million blocks, page by page, into another head's index."""
    from prfaas.cluster.kvexchange import KVExchange
    from prfaas.core.ids import ClusterName, Epoch, NodeName
    from prfaas.core.index.changes import Opened, Stored, apply
    from prfaas.core.index.index import PrefixIndex
    from prfaas.core.index.mirror import Do, Got, Mirror
    from prfaas.core.index.places import Known, Place
    from prfaas.wire.kvexchange import decode, encode

    chance, cluster = random.Random(5), ClusterName("c")
    place = Place(cluster, NodeName("n"))
    head = KVExchange(cluster, PrefixIndex())
    head.change(Opened(place, Epoch(1), {}, Known.WHOLLY))
    for _ in range(prompts):
        head.change(Stored(place, tuple(chance.getrandbits(64) for _ in range(CHAIN)), None))
    mirror, index = Mirror(cluster, 1), PrefixIndex()
    pages = sent = 0
    worst = 0.0
    began = time.process_time()
    while not mirror.current:
        start = time.process_time()
        raw = encode(head.page(mirror.query))
        worst = max(worst, time.process_time() - start)
        pages, sent = pages + 1, sent + len(raw)
        for effect in mirror.handle(0, Got(decode(raw, cluster))):
            if isinstance(effect, Do):
                apply(index, effect.change)
    took = time.process_time() - began
    assert index.blocks == prompts * CHAIN
    per_block = sent / index.blocks
    return {
        "blocks_per_s": index.blocks / took,
        "pages": pages,
        "bytes_per_block": per_block,
        "worst_page_ms": worst * 1e3,
    }


def hashing() -> dict[str, float]:
    """Milliseconds of the 2,048 hashes of a 128K-token prompt; and of one hash over it all, the least there is."""
    from prfaas.model.blockhash import CacheKey, block_hashes
    from prfaas.model.text import prompt_hash

    chance = random.Random(3)
    ids = [chance.randrange(150_000) for _ in range(CHAIN * 64)]
    words, root = array("I", ids), CacheKey("model").root()

    def best_ms(work: Any) -> float:
        times = []
        for _ in range(30):
            began = time.perf_counter_ns()
            work()
            times.append(time.perf_counter_ns() - began)
        return round(statistics.median(times) / 1e6, 3)

    found = {
        "array_ms": best_ms(lambda: block_hashes(words, root)),
        "list_ms": best_ms(lambda: block_hashes(ids, root)),
        "packing_a_list_ms": best_ms(lambda: array("I", ids)),
        "one_hash_ms": best_ms(lambda: prompt_hash(words)),
    }
    return found | {"array_to_one_hash": round(found["array_ms"] / found["one_hash_ms"], 1)}


ALONE: dict[str, tuple[Any, Any]] = {
    "vllm_events_64_token_blocks": (followed, lambda prompts: (64, max(1, prompts // 10))),
    "vllm_events_16_token_blocks": (followed, lambda prompts: (16, max(1, prompts // 10))),
    "head_to_head": (mirrored, lambda prompts: (prompts,)),
}


def alone(function: Any, *arguments: int) -> dict[str, float]:
    """What `function` finds in a process of its own."""
    code = f"import json; from benchmarks.index import {function.__name__} as f; print(json.dumps(f(*{arguments})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turn(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Every pass of both sides, each in a process of its own."""
    pythons = {"prfaas": sys.executable} | ({"dynamo": PYTHON} if PYTHON else {})
    passes: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for _ in range(options.passes):
        for name, python in pythons.items():
            command = [python, __file__, "--side", name, "--prompts", str(options.prompts), "--asks", str(options.asks)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr[-2000:]}")
            passes[name].append(json.loads(done.stdout.splitlines()[-1]))
    return passes


def best(passes: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every figure the best: the highest rate, the least of all else."""
    found: dict[str, Any] = {}
    for key, value in passes[0].items():
        if isinstance(value, dict):
            found[key] = best([one[key] for one in passes])
        else:
            pick = max if key.endswith("_per_s") else min
            found[key] = round(pick(one[key] for one in passes), 2 if key.endswith("_us") else None)
    return found


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Ours by theirs, figure by figure. Of questions also our P99 by their P50, which a busy machine does not help."""
    found: dict[str, Any] = {}
    for key, value in ours.items():
        if isinstance(value, dict) and key in theirs:
            found[key] = ratios(value, theirs[key])
            found[key]["p99_to_their_p50"] = round(value["p99_us"] / theirs[key]["p50_us"], 3)
        elif key in theirs:
            found[key] = round(value / theirs[key], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=488)
    parser.add_argument("--asks", type=int, default=3000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.prompts, options.asks)))
        return
    passes = in_turn(options)
    found: dict[str, Any] = {"blocks": options.prompts * CHAIN, "chain_blocks": CHAIN, "event_blocks": EVENT}
    found |= {"passes": options.passes, "asks": options.asks, "hashing_128k_tokens": hashing()}
    found |= {name: best(each) for name, each in passes.items()}
    for name, (function, arguments) in ALONE.items():
        found[name] = {key: round(value, 1) for key, value in alone(function, *arguments(options.prompts)).items()}
    if "dynamo" in found:
        found["ratio"] = ratios(found["prfaas"], found["dynamo"])
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
