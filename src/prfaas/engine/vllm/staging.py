"""Between device memory and host bytes: one small interface, for CPU and for CUDA.

It knows tensors and bytes; it does not know pages, layers or transfers. Called on the worker's thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

Then = Callable[[memoryview], None]


class Staging(Protocol):
    """Copies of tensors in host memory."""

    def gather(self, values: Any, then: Then) -> None:
        """Copy `values` (any strides) to host bytes, row-major; `then` gets them, in this call, a later one or
        `settle`. `values` must not be written before `settle`."""

    def settle(self) -> None:
        """Waits until all that was gathered has been given to its `then`."""

    def scatter(self, data: memoryview, dtype: Any, shape: tuple[int, ...]) -> Any:
        """`data` as a tensor on the device. On the CPU it is a view: `data` must outlive it."""


class CpuStaging:
    """Device memory is host memory: a copy each way."""

    def gather(self, values: Any, then: Then) -> None:
        """See Staging."""
        then(_bytes_of(values.contiguous()))

    def settle(self) -> None:
        """See Staging."""

    def scatter(self, data: memoryview, dtype: Any, shape: tuple[int, ...]) -> Any:
        """See Staging."""
        return torch.frombuffer(data, dtype=dtype).view(shape)


class CudaStaging:
    """Through pinned memory, on a stream of its own. Not verified on a GPU yet."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device=device)
        self._waiting: deque[tuple[Any, Any, Then]] = deque()

    def gather(self, values: Any, then: Then) -> None:
        """See Staging. What earlier copies are done is given away on the way, so that layers leave while others run."""
        packed = values.contiguous()
        pinned = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            pinned.copy_(packed, non_blocking=True)
            packed.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        self._waiting.append((done, pinned, then))
        while self._waiting and self._waiting[0][0].query():
            self._give()

    def settle(self) -> None:
        """See Staging."""
        while self._waiting:
            self._waiting[0][0].synchronize()
            self._give()

    def scatter(self, data: memoryview, dtype: Any, shape: tuple[int, ...]) -> Any:
        """See Staging."""
        return torch.frombuffer(data, dtype=dtype).view(shape).to(self._device)

    def _give(self) -> None:
        _, pinned, then = self._waiting.popleft()
        then(_bytes_of(pinned))


def staging_for(device: Any) -> Staging:
    """The staging of `device`."""
    return CudaStaging(device) if torch.device(device).type == "cuda" else CpuStaging()


def _bytes_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor in host memory, which they keep alive."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy()).toreadonly()
