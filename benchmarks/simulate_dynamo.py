"""One offline replay of a trace by Dynamo, timed: what `benchmarks.simulate --dynamo PYTHON` runs beside ours.

It runs in a Python that has `ai-dynamo-runtime` (1.6.1), and needs nothing else; what it is told and what it answers
are one JSON object each, on standard input and output. Reading the trace is timed alone, by a replay that stops at
once, so that it can be left out as it is left out of ours. As near to the case of ours as its settings allow: as many
prefill and decode workers, the same slots and step, prefix caches that hold everything; one time for each batch of
8,192 tokens.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

BATCH_TOKENS = 8192
BLOCKS = 4_000_000


def replayed(said: dict[str, Any], stop_ms: float | None) -> dict[str, float]:
    """Seconds of CPU and wall time, and what the replay says."""
    from dynamo._core import _normalize_mocker_config, run_mocker_trace_replay

    def engine(kind: str, sequences: int) -> Any:
        return _normalize_mocker_config(
            {
                "engine": {
                    "worker_type": kind,
                    "num_gpu_blocks": BLOCKS,
                    "block_size": said["block_tokens"],
                    "max_num_seqs": sequences,
                    "max_num_batched_tokens": BATCH_TOKENS,
                    "timing_model": {"type": "fixed", "prefill_ms": said["prefill_ms"], "decode_ms": said["decode_ms"]},
                }
            }
        )

    cpu, wall = time.process_time(), time.perf_counter()
    result = run_mocker_trace_replay(
        [said["trace"]],
        prefill_engine_args=engine("prefill", said["prefill_sequences"]),
        decode_engine_args=engine("decode", said["slots"]),
        num_prefill_workers=said["prefill"],
        num_decode_workers=said["decode"],
        router_mode=said["router"],
        trace_block_size=said["block_tokens"],
        max_sim_time_ms=stop_ms,
        capture_planner_details=False,
    )
    took = time.process_time() - cpu, time.perf_counter() - wall
    summary = result.summary
    return {
        "cpu_s": took[0],
        "wall_s": took[1],
        "completed": summary["completed_requests"],
        "ttft_s": summary["mean_ttft_ms"] / 1000,
        "hit_share": summary["prefix_cache_reused_ratio"],
    }


def main() -> None:
    """Answer one question."""
    said = json.load(sys.stdin)
    replayed(said, 1.0)  # the library comes into memory
    before, whole, after = replayed(said, 1.0), replayed(said, None), replayed(said, 1.0)
    read = {f"read_{what}": min(before[what], after[what]) for what in ("cpu_s", "wall_s")}
    json.dump(whole | read, sys.stdout)


if __name__ == "__main__":
    main()
