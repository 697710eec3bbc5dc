"""vLLM's own publisher of KV events, in the interpreter that has vLLM, driven by lines: DIAL REPLAY STEPS.

A prompt is 128 tokens, eight blocks of 16, by its number.
"""

from __future__ import annotations

import sys
import time

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, ZmqEventPublisher


def main() -> None:
    dial, replay, steps = sys.argv[1:]
    publisher = ZmqEventPublisher(
        0, endpoint=f"tcp://{dial}", replay_endpoint=f"tcp://{replay}", buffer_steps=int(steps), topic="p0"
    )
    print("up", flush=True)
    for line in sys.stdin:
        what, number = line.split()
        names = [int(number) * 100 + at for at in range(8)]
        if what == "store":
            event = BlockStored(
                block_hashes=names,
                parent_block_hash=None,
                token_ids=[int(number) * 1000 + at for at in range(128)],
                block_size=16,
                lora_id=None,
                medium="GPU",
                lora_name=None,
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            )
        elif what == "remove":
            event = BlockRemoved(block_hashes=names[-1:], medium="GPU", group_idx=0)
        else:
            event = AllBlocksCleared()
        publisher.publish(EventBatch(ts=time.time(), events=[event]))
        print("published", flush=True)
    publisher.shutdown()


if __name__ == "__main__":
    main()
