"""A connection whose client takes too long to say what it wants is closed: uvicorn itself would wait for ever."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def impatient_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, but each request must have arrived, but for its body, within so many seconds."""

    class Impatient(H11Protocol):
        """Looks after every half of that time whether the connection has been without a request all along."""

        _look: asyncio.TimerHandle | None = None
        _idle_looks = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look = self.loop.call_later(seconds / 2, self._look_again)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._look is not None:
                self._look.cancel()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:
                self._idle_looks = 0

        def _look_again(self) -> None:
            cycle: Any = self.cycle
            idle = cycle is None or cycle.response_complete
            self._idle_looks = self._idle_looks + 1 if idle else 0
            if self._idle_looks >= 2:
                self.transport.close()
                return
            self._look = self.loop.call_later(seconds / 2, self._look_again)

    return Impatient
