"""Ctrl-C that ends long work after a step, instead of in the middle of it."""

import signal
import threading
from types import FrameType

__all__ = ["Interrupt"]


class Interrupt:
    """A context whose first Ctrl-C sets ``seen``; the second raises ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.seen = False
        self.previous = None

    def __enter__(self) -> "Interrupt":
        # Only the main thread can handle signals; a handler installed by the caller is kept.
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True

    def __exit__(self, *_) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)
