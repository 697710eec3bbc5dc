"""What vLLM's metrics say of its load. (The clients themselves are tested on real servers: tests/vllm.)"""

from __future__ import annotations

import pytest

from prfaas.cluster.vllmnode import Load, load_of
from prfaas.core.errors import ProtocolError

REAL = """
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7960199884e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="511",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="128",engine="1",num_gpu_blocks="511",sliding_window="None"} 1.0
"""


def test_over_all_engines_of_a_server() -> None:
    assert load_of(REAL, "x") == Load(7, 128, 1022, 1_796_019_988_400_000_000)


@pytest.mark.parametrize("text", ["", "<html>", "process_start_time_seconds 1", "vllm:num_requests_running{ 1"])
def test_what_is_not_vllms(text: str) -> None:
    with pytest.raises(ProtocolError, match="http://x/metrics"):
        load_of(text, "http://x/metrics")
