"""What every program has: logs of one line, background tasks that do not fail in silence, metrics of its own."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from prfaas.runtime.log import set_up_logging
from prfaas.runtime.metrics import EngineMetrics, Metrics
from prfaas.runtime.tasks import Tasks, until_stopped


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = before
    logging.captureWarnings(False)
    structlog.reset_defaults()


def test_json_lines(log_stream: io.StringIO) -> None:
    set_up_logging("info", "json", log_stream, node="n1")
    log = structlog.get_logger("prfaas.test")
    log.debug("not shown")
    with structlog.contextvars.bound_contextvars(request_id="r"):
        log.info("two\nlines", size_bytes=4)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("aiohttp").exception("foreign")
    ours, foreign = [json.loads(line) for line in log_stream.getvalue().splitlines()]
    assert ours.pop("timestamp").endswith("Z")
    assert ours == {
        "event": "two\nlines", "level": "info", "logger": "prfaas.test", "node": "n1", "request_id": "r",
        "size_bytes": 4,
    }  # fmt: skip
    assert (foreign["event"], foreign["node"], foreign["level"]) == ("foreign", "n1", "error")
    assert "ValueError: why" in foreign["exception"]


def test_console(log_stream: io.StringIO) -> None:
    set_up_logging("warning", "console", log_stream)
    structlog.get_logger("x").info("hidden")
    structlog.get_logger("x").warning("shown", a=1)
    (line,) = log_stream.getvalue().splitlines()
    assert "shown" in line
    assert "a=1" in line


def test_local_variables_stay_out_of_logs(log_stream: io.StringIO) -> None:
    for form in ("console", "json"):
        set_up_logging("warning", form, log_stream)
        hidden = "".join(["sec", "ret"])
        try:
            raise ValueError(len(hidden))
        except ValueError:
            structlog.get_logger("x").exception("failed")
    assert "ValueError: 6" in log_stream.getvalue()
    assert "secret" not in log_stream.getvalue()


async def test_a_failing_task_is_known() -> None:
    tasks = Tasks()
    ended = asyncio.Event()

    async def good() -> None:
        ended.set()

    async def bad() -> None:
        raise RuntimeError("broken")

    tasks.spawn(good(), "good")
    await ended.wait()
    waiting = asyncio.create_task(tasks.failure())
    tasks.spawn(bad(), "bad")
    async with asyncio.timeout(5):
        assert str(await waiting) == "broken"
        assert str(await tasks.failure()) == "broken"
    assert await until_stopped(tasks) == 1
    await tasks.close()
    assert len(tasks) == 0


async def test_close_cancels_and_waits() -> None:
    tasks = Tasks()
    left = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.set()

    task = tasks.spawn(work(), "work")
    await asyncio.sleep(0)
    await tasks.close()
    assert left.is_set()
    assert task.cancelled()
    assert len(tasks) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_stop_a_program(number: signal.Signals) -> None:
    waiting = asyncio.create_task(until_stopped(Tasks()))
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    async with asyncio.timeout(5):
        assert await waiting == 0


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_have_their_names_and_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    engine = EngineMetrics(one.registry, "m")
    one.request_ended("remote", "ok")
    one.kv_moved("a->b", 100)
    with one.stage("prefill"):
        pass
    one.watch_node("n", lambda: 3, lambda: 1)
    engine.watch(lambda: 2, lambda: 5, lambda: 0.5)
    engine.prompt_tokens.inc(7)
    engine.generation_tokens.inc(2)
    engine.first_token.observe(0.1)
    engine.succeeded("stop")
    found = samples(one)
    for name, value in {
        "prfaas_requests_total[('outcome', 'ok'), ('route', 'remote')]": 1,
        "prfaas_kv_bytes_total[('link', 'a->b')]": 100,
        "prfaas_stage_seconds_count[('stage', 'prefill')]": 1,
        "prfaas_blocks_in_use[('node', 'n')]": 3,
        "prfaas_transfers_in_use[('node', 'n')]": 1,
        "vllm:num_requests_running[('model_name', 'm')]": 2,
        "vllm:num_requests_waiting[('model_name', 'm')]": 5,
        "vllm:kv_cache_usage_perc[('model_name', 'm')]": 0.5,
        "vllm:prompt_tokens_total[('model_name', 'm')]": 7,
        "vllm:generation_tokens_total[('model_name', 'm')]": 2,
        "vllm:time_to_first_token_seconds_count[('model_name', 'm')]": 1,
        "vllm:request_success_total[('finished_reason', 'stop'), ('model_name', 'm')]": 1,
    }.items():
        assert found[name] == value
    assert not any("outcome" in name or "node" in name for name in samples(other))
