"""The network between the simulated processes: real protocols over transports that delay, drop, repeat and break.

A fate is drawn for each request. `copied` is a proxy that sends a request a second time, perhaps much later.
"""

import asyncio
import errno
import re
from typing import Any

from tests.simulation import seams

HOST, PORT = "192.0.2.1", 80

FATES = (
    "request lost",
    "reset before it was read",
    "reset after it was read",
    "answer lost",
    "half an answer",
    "half a request",
    "slow",
    "copied",
    "answered by a proxy",
)
_PROXY = (
    b"502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    b"503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    b"429 Slow down\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n",
    b"401 Who are you\r\nContent-Length: 0\r\n\r\n",
    b"404 Nothing here\r\nContent-Length: 0\r\n\r\n",
    b"302 Elsewhere\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
    b"200 OK\r\nContent-Length: 16\r\n\r\n<h1>Sign in</h1>",
    b"409 Conflict\r\nContent-Length: 0\r\n\r\n",
    b"204 No Content\r\n\r\n",
    b"200 OK\r\nContent-Length: 40\r\n\r\n" + b'{"id":"job-0","qty":0,"result":"accepted"',
)
_MARKS = re.compile(rb"Idempotency-Key: ([^\r]*)\r\n.*?Asyncqueue-Token: (\d+)", re.DOTALL | re.IGNORECASE)


class Network:
    """Who listens where, and what may go wrong. `fates` are weights by name; nothing goes wrong without them."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.fates: dict[str, float] = {}
        self.refuse_rate = 0.0
        self.hang_rate = 0.0
        self.latency_s = (0.0002, 0.004)
        self.on_request: Any = lambda _process, _id, _token: None  # told of each request of a simulated process
        self._listeners: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._links = 0

    def calm(self) -> None:
        """No more faults for what is sent from now on."""
        self.fates, self.refuse_rate, self.hang_rate = {}, 0.0, 0.0

    def listen(self, process: Any, factory: Any, sock: Any) -> "SimServer":
        self._listeners[sock.getsockname()] = (process, factory)
        return SimServer(self, sock)

    def listener(self, address: tuple[str, int]) -> tuple[Any, Any] | None:
        found = self._listeners.get(address)
        return found if found is not None and found[0].is_alive else None

    def close(self, address: tuple[str, int]) -> None:
        self._listeners.pop(address, None)

    def fate(self) -> str:
        total = sum(self.fates.values())
        if not total or self.world.rng.random() >= total:
            return ""
        return self.world.rng.choices([*self.fates], [*self.fates.values()])[0]

    def latency(self) -> float:
        return self.world.rng.uniform(*self.latency_s)

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def send_copy(self, data: bytes) -> None:
        """Be a proxy that sends a request once more; nobody reads the answer."""
        found = self.listener((HOST, PORT))
        if found is not None:
            self.world.tell("a copy of an earlier request arrives")
            link = Link(self, None, found)
            link.client.write(data)


class SimServer(asyncio.AbstractServer):
    """What `create_server` returns."""

    def __init__(self, network: Network, sock: Any) -> None:
        self._network, self._address = network, sock.getsockname()
        self.sockets = ()

    def close(self) -> None:
        self._network.close(self._address)

    def is_serving(self) -> bool:
        return self._network.listener(self._address) is not None

    async def wait_closed(self) -> None:
        return


class SimSocket:
    """A bound or connected socket, as far as anybody asks."""

    def __init__(self, address: tuple[str, int] = (HOST, PORT)) -> None:
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        """There is nothing behind it."""


async def start_connection(addr_infos: Any, **_settings: Any) -> SimSocket:
    """Stand in for the way in which aiohttp gets a connected socket."""
    world = seams.world()
    network, rng = world.network, world.rng
    if rng.random() < network.hang_rate:
        world.tell("a connect hangs")
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(network.latency())
    address = addr_infos[0][4][:2]
    if network.listener(address) is None or rng.random() < network.refuse_rate:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return SimSocket(address)


def connected(process: Any, factory: Any, sock: SimSocket) -> tuple["Endpoint", Any]:
    """Return transport and protocol of a client whose socket is connected."""
    network = process.world.network
    found = network.listener(sock.address)
    if found is None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    link = Link(network, process, found)
    protocol = factory()
    link.client.protocol = protocol
    protocol.connection_made(link.client)
    return link.client, protocol


class Link:
    """One connection: two endpoints, order kept within each direction."""

    def __init__(self, network: Network, client: Any, listener: tuple[Any, Any]) -> None:
        server, self._factory = listener
        self.listener = server
        self.network, self.world = network, network.world
        self.serial = network.next_link()
        self.client, self.server = Endpoint(self, client), Endpoint(self, server)
        self.client.peer, self.server.peer = self.server, self.client
        self.slow_s = 0.0
        self.is_muted: dict[Endpoint, bool] = {self.client: False, self.server: False}
        self.answer_bytes_left: int | None = None
        self.is_cut = False
        self._last_ns = {self.client: 0, self.server: 0}
        self.carry(self.client, self._accept)

    def carry(self, sender: "Endpoint", what: Any, *args: Any) -> None:
        """Let `what` happen at the other side, after what was sent before it; never if the link is muted."""
        if self.is_cut or self.is_muted[sender]:
            return
        when_ns = self.world.now_ns + int((self.network.latency() + self.slow_s) * 1e9)
        when_ns = self._last_ns[sender] = max(when_ns, self._last_ns[sender] + 1)
        self.world.at((when_ns - self.world.now_ns) / 1e9, self._arrive, sender.peer, what, args)

    def _arrive(self, receiver: "Endpoint", what: Any, args: tuple[Any, ...]) -> None:
        if self.is_cut:
            return
        process = receiver.process
        if process is None:
            return  # nobody reads the answer to a copy
        if process.is_alive:
            if what != self._accept and not receiver.reads:
                receiver.early.append((what, args))
            else:
                process.loop.report(self.serial, what, *args)
        elif what != receiver.on_eof:
            self.cut()

    def _accept(self) -> None:
        """Begin as asyncio does: nothing is read before the iteration that follows `connection_made`."""
        server = self.server
        server.protocol = self._factory()
        loop = server.process.loop
        loop.call_soon(server.protocol.connection_made, server)
        loop.call_soon(server.begin_to_read)

    def cut(self) -> None:
        """Reset the connection: what is on its way is lost, both sides hear of it."""
        if self.is_cut:
            return
        self.is_cut = True
        for endpoint in (self.client, self.server):
            if endpoint.process is not None:
                self.world.at(self.network.latency(), endpoint.hear_reset)


class Endpoint(asyncio.Transport):
    """One end of a link."""

    def __init__(self, link: Link, process: Any) -> None:
        super().__init__({"peername": ("192.0.2.9", 9), "sockname": (HOST, PORT)})
        self.link, self.process = link, process
        self.peer: Endpoint
        self.protocol: Any = None
        self._is_closing = self._is_lost = self._is_paused = False
        self._unread: list[bytes] = []
        self.reads = process is None or process is not link.listener  # a server's end is accepted first
        self.early: list[tuple[Any, tuple[Any, ...]]] = []
        if process is not None:
            process.endpoints.append(self)

    # --- what protocols use --------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        data = bytes(data)
        if self is self.link.server:
            self._write_answer(data)
        elif data.startswith(b"POST"):
            self._write_request(data)
        else:
            self._send(data)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.link.carry(self, self.peer.on_eof)
            if self.process is not None:
                self.process.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self.link.cut()
            if self.process is not None:
                self.process.loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        unread, self._unread = self._unread, []
        for data in unread:
            self.process.loop.call_soon(self.on_data, data)

    def is_reading(self) -> bool:
        return not self._is_paused

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever kept back."""

    def can_write_eof(self) -> bool:
        return False

    # --- what the network does -----------------------------------------------------------------------------

    def _write_request(self, data: bytes) -> None:
        link, world = self.link, self.link.world
        if self.process is None:  # a copy
            self._send(data)
            return
        fate = link.network.fate()
        marks = _MARKS.search(data)
        job_id, token = (marks[1].decode(), int(marks[2])) if marks else ("?", 0)
        world.tell(f"POST {job_id} token {token}" + (f": {fate}" if fate else ""))
        link.network.on_request(self.process, job_id, token)
        link.slow_s = world.rng.uniform(0.02, 1.6) if fate == "slow" else 0.0
        if fate in _UNREAD:
            _UNREAD[fate](self, data)
        else:
            self._doom_answer(fate, data)
            self._send(data)

    def _doom_answer(self, fate: str, data: bytes) -> None:
        """Prepare what happens to a request that arrives."""
        link, world, rng = self.link, self.link.world, self.link.world.rng
        if fate == "copied":
            world.at(rng.choice((0.0, 0.5, 9.0)) * rng.random(), link.network.send_copy, data)
        elif fate == "reset after it was read":
            world.at(link.network.latency() + rng.choice((0.0, 0.01)) * rng.random(), link.cut)
        elif fate == "answer lost":
            link.is_muted[self.peer] = True
        elif fate == "half an answer":
            link.answer_bytes_left = rng.randrange(0, 250)

    def _lose_request(self, _data: bytes) -> None:
        self.link.is_muted[self] = True

    def _reset_unread(self, _data: bytes) -> None:
        self.link.world.at(self.link.network.latency(), self.link.cut)

    def _send_half(self, data: bytes) -> None:
        world = self.link.world
        self._send(data[: world.rng.randrange(1, len(data))])
        if world.rng.random() < 0.5:
            world.at(world.rng.uniform(0.0, 0.5), self.link.cut)
        self.link.is_muted[self] = True

    def _meet_proxy(self, _data: bytes) -> None:
        answer = b"HTTP/1.1 " + self.link.world.rng.choice(_PROXY)
        self.link.world.tell(f"a proxy answers {answer[9:30]!r}")
        self.link.carry(self.peer, self.on_data, answer)

    def _write_answer(self, data: bytes) -> None:
        link = self.link
        if link.answer_bytes_left is None:
            self._send(data)
            return
        self._send(data[: link.answer_bytes_left])
        link.answer_bytes_left -= len(data[: link.answer_bytes_left])
        if not link.answer_bytes_left:
            link.answer_bytes_left = None
            how = link.world.rng.choice(("stalls", "ends", "breaks"))
            if how == "breaks":
                link.world.at(link.network.latency(), link.cut)
            elif how == "ends":
                link.carry(self, self.peer.on_eof)
            link.is_muted[self] = True

    def _send(self, data: bytes) -> None:
        if len(data) > 1 and self.link.world.rng.random() < 0.1:
            cut = self.link.world.rng.randrange(1, len(data))
            self.link.carry(self, self.peer.on_data, data[:cut])
            data = data[cut:]
        self.link.carry(self, self.peer.on_data, data)

    def on_data(self, data: bytes) -> None:
        if self._is_closing:
            self.link.cut()  # the kernel answers bytes for a closed socket by a reset
        elif self._is_paused or self._unread:
            self._unread.append(data)
        else:
            self.protocol.data_received(data)

    def on_eof(self) -> None:
        if not self._is_closing and not self.protocol.eof_received():
            self.close()

    def begin_to_read(self) -> None:
        self.reads = True
        early, self.early = self.early, []
        for what, args in early:
            self.process.loop.report(self.link.serial, what, *args)

    def hear_reset(self) -> None:
        if self.process.is_alive:
            if self.reads:
                self.process.loop.report(self.link.serial, self._on_reset)
            else:
                self.early.append((self._on_reset, ()))

    def _on_reset(self) -> None:
        self._is_closing = True
        self.process.loop.call_soon(self._lose, ConnectionResetError(errno.ECONNRESET, "reset"))

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            if self.protocol is not None:
                self.protocol.connection_lost(error)

    def owner_died(self) -> None:
        """The kernel closes what a dead process held: by a reset, or by an end after what was written."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if self.link.world.rng.random() < 0.5:
            self.link.cut()
        else:
            self.link.carry(self, self.peer.on_eof)


_UNREAD = {
    "request lost": Endpoint._lose_request,
    "reset before it was read": Endpoint._reset_unread,
    "half a request": Endpoint._send_half,
    "answered by a proxy": Endpoint._meet_proxy,
}
