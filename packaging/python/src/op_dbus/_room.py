"""Places for the calls of a connection."""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Room:
    """So many places and no more, given to who waits in the order of their coming."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._moved = 0.0

    async def take(self, seconds: float | None) -> None:
        """Waits for a place, which :meth:`give_back` must follow.

        Raises ``TimeoutError`` once nobody has given one back for so many seconds. As long as places
        come free the wait is a queue and no silence, however long it takes.
        """
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        begun, place = loop.time(), loop.create_future()
        self._waiting[place] = None
        try:
            while not place.done():
                left = None
                if seconds is not None:
                    left = max(begun, self._moved) + seconds - loop.time()
                    if left <= 0:
                        raise TimeoutError
                await asyncio.wait([place], timeout=left)
        except BaseException:
            if place.done():
                self.give_back()
            else:
                del self._waiting[place]
            raise

    def give_back(self) -> None:
        """One place is free, or goes to the next who waits."""
        self._moved = asyncio.get_running_loop().time()
        if self._waiting:
            place, _ = self._waiting.popitem(last=False)
            place.set_result(None)
        else:
            self._free += 1
