"""A second stream of a GPU, on which the exchange of a call, and the short launches that need what came, run beside its large
kernel.

That kernel is launched first, so that the card does not wait for the host to send; what follows has a higher priority, so that
its blocks take the place of the first ones of the large kernel that end.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools

import torch
from torch import Tensor


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


class Beside:
    """The second stream of one call. It begins behind all that the current stream had when this was made.

    Tensors that were made before may be used on both streams. A CPU has no second one, and `hides` is False: there the
    exchange begins before what is to hide it.
    """

    def __init__(self, like: Tensor) -> None:
        self.hides = like.is_cuda
        if self.hides:
            self.current = torch.cuda.current_stream(like.device)
            self.began = self.current.record_event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The current stream is the second one; what the call's own stream is given after that waits for it."""
        if not self.hides:
            yield
            return
        stream = _stream_of(self.current.device)
        stream.wait_event(self.began)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            self.current.wait_stream(stream)

    def keep(self, *tensors: Tensor | None) -> None:
        """Tensors that were made on the second stream, and that the call's own uses: their memory is not given to others as
        long as it does.
        """
        if self.hides:
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(self.current)
