"""A TCP proxy before the server, for what networks do: freeze, cut, swallow one answer, lead elsewhere."""

import asyncio
import contextlib


class Proxy:
    """Forwards to `target`; frozen, it takes everything and passes nothing on, as a half-open connection does."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.port = 0
        self.connections = 0
        self._moving = asyncio.Event()
        self._moving.set()
        self._cut_on = None
        self._hears_questions = True
        self._answered = asyncio.Event()
        self._writers = set()
        self._tasks = set()
        self._server = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error):
        await self.stop()

    async def stop(self):
        """Refuse new connections, and drop those that there are."""
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, url):
        """The same URL by way of this proxy."""
        return url.replace(f":{self.target_port}/", f":{self.port}/")

    @property
    def is_idle(self):
        """Whether nobody is connected."""
        return not self._writers

    def freeze(self):
        self._moving.clear()

    def thaw(self):
        self._moving.set()

    def cut(self):
        for writer in tuple(self._writers):
            writer.transport.abort()

    def cut_after(self, words):
        """Pass on the next message that holds `words`, then cut before its answer."""
        self._cut_on = words

    def cut_at_questions(self):
        """Let everybody in, and cut whoever then asks for anything, as a pooler does whose server is away."""
        self._hears_questions = False

    async def _serve(self, reader, writer):
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        pumps = [
            asyncio.create_task(self._pump(reader, there[1], (writer, there[1]), looks=True)),
            asyncio.create_task(self._pump(there[0], writer, (writer, there[1]), looks=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for one in (writer, there[1]):
                one.transport.abort()
            self._writers -= {writer, there[1]}
            self._tasks.discard(asyncio.current_task())

    async def _pump(self, source, sink, both, *, looks):
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self._moving.wait()
                if looks and not self._hears_questions and data[:1] in {b"P", b"Q"}:
                    return
                if not looks:
                    self._answered.set()
                sink.write(data)
                await sink.drain()
                if looks and self._cut_on is not None and self._cut_on in data:
                    self._cut_on = None
                    self._answered.clear()
                    both[0].transport.abort()
                    await self._answered.wait()  # the server has done it; its answer finds nobody
                    return
