"""One vLLM engine in this process, told what to do by lines of JSON, for tests: `python -m tests.vllm.rig CONFIG`.

In: {"do": "add", "id", "tokens", "max_tokens", "params"}, {"do": "abort", "id"}, {"do": "state"}, {"do": "reset"},
{"do": "step", "on": false} (stop stepping), {"do": "quit"}. Out: {"said": "ready"}, {"said": "end", "id", "tokens",
"finish", "cached", "params"}, {"said": "state", "free", "requests", "steps"}.
"""

import json
import os
import queue
import sys
import threading
import time


def main() -> None:
    config = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to where we speak
    os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
    os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
    from vllm import EngineArgs, LLMEngine, SamplingParams

    def say(**what: object) -> None:
        out.write(json.dumps(what) + "\n")

    engine = LLMEngine.from_engine_args(EngineArgs(**config))
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    preempt, preempted = scheduler._preempt_request, []

    def counted(request: object, *more: object, **named: object) -> None:
        preempted.append(request)
        preempt(request, *more, **named)

    scheduler._preempt_request = counted
    orders: queue.Queue[dict[str, object]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        orders.put({"do": "quit"})

    threading.Thread(target=read, daemon=True).start()
    pool = scheduler.kv_cache_manager.block_pool
    groups = [type(group.kv_cache_spec).__name__ for group in scheduler.kv_cache_config.kv_cache_groups]
    sizes = [group.kv_cache_spec.block_size for group in scheduler.kv_cache_config.kv_cache_groups]
    say(said="ready", blocks=pool.get_num_free_blocks(), groups=groups, sizes=sizes)
    steps, stepping = 0, True
    names: dict[str, str] = {}
    while True:
        busy = stepping and scheduler.has_requests()
        try:
            order = orders.get(timeout=0 if busy else 0.02)
        except queue.Empty:
            order = None
        if order is not None:
            match order["do"]:
                case "add":
                    params = SamplingParams(
                        temperature=0,
                        max_tokens=order["max_tokens"],
                        ignore_eos=True,
                        extra_args={"kv_transfer_params": order["params"]} if order.get("params") else None,
                    )
                    made = engine.add_request(order["id"], {"prompt_token_ids": order["tokens"]}, params)
                    names[order["id"]] = made or order["id"]
                case "abort":
                    engine.abort_request([order["id"]])
                case "state":
                    say(
                        said="state",
                        free=pool.get_num_free_blocks(),
                        requests=len(scheduler.requests),
                        steps=steps,
                        preempted=len(preempted),
                    )
                case "reset":
                    say(said="reset", done=engine.reset_prefix_cache())
                case "step":
                    stepping = bool(order["on"])
                case "quit":
                    break
        if not busy:
            continue
        before = time.perf_counter()
        for made in engine.step():
            if made.finished:
                one = made.outputs[0]
                say(
                    said="end",
                    id=made.request_id,
                    tokens=list(one.token_ids),
                    finish=str(one.finish_reason),
                    cached=made.num_cached_tokens,
                    params=made.kv_transfer_params,
                )
        steps += 1
        if time.perf_counter() - before < 0.001:
            time.sleep(0.001)  # as vLLM's own loop does when nothing is computed
    engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
