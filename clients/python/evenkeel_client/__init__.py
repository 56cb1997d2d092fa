"""Takes turns at a line door of Evenkeel: a fair semaphore across processes and machines.

`Turns` is for threads, `AsyncTurns` for asyncio. Each turn has a connection of its own while it is
waited for or held, because a closed connection gives its turns back: a program that is killed does
not block the others. Idle connections are kept for later turns. If the door does not answer, jobs run
without a turn.
"""

import asyncio
import contextlib
import logging
import socket
import threading

__all__ = ["AsyncTurns", "Busy", "EvenkeelError", "Late", "Turn", "Turns"]

log = logging.getLogger("evenkeel_client")
IDLE_MAX = 16


class EvenkeelError(Exception):
    """The door refuses the command."""


class Late(EvenkeelError):
    """The turn did not come in time."""


class Busy(EvenkeelError):
    """No turn is free, or too many programs wait."""


class Turn:
    """A turn that is held. Set `cost` to the seconds that it cost; by default it costs as long as it
    is held. `id` is None if no door answered."""

    def __init__(self, id=None):
        self.id, self.cost = id, None


def _command(verb, tag, cost, wait):
    if "\n" in tag:
        raise ValueError("a tag has no newline")
    options = (("cost", cost), ("wait", wait))
    words = "".join(f" {name}={time * 1000:.3f}ms" for name, time in options if time is not None)
    return f"{verb} {tag}{words}\n".encode()


def _read_turn(reply):
    """The turn that a door has given. The connection failed if the reply is empty."""
    word, _, rest = reply.decode(errors="replace").rstrip("\n").partition(" ")
    if word == "TURN":
        return Turn(rest)
    if word == "LATE":
        raise Late("the turn did not come in time")
    if word == "BUSY":
        raise Busy("no turn is free")
    if word == "ERR":
        raise EvenkeelError(rest)
    if word in ("OK", "NO"):
        raise EvenkeelError("the door gives out no turns: set `line.turns`")
    raise ConnectionError("the door closed the connection")


def _address(text):
    scheme, _, rest = text.partition("://")
    if scheme == "unix" and rest.startswith("/"):
        return rest
    host, colon, port = rest.rpartition(":")
    if scheme == "tcp" and host and colon and port.isdigit():
        return host.strip("[]"), int(port)
    raise ValueError(f"not an address of a door: {text}; write tcp://HOST:PORT or unix:///PATH")


def _done(turn):
    return _command("DONE", turn.id, turn.cost, None)


class Turns:
    """Turns for threads."""

    def __init__(self, address="tcp://127.0.0.1:7070", connect_timeout=1.0):
        self._address, self._connect_timeout = _address(address), connect_timeout
        self._idle, self._lock = [], threading.Lock()

    def take(self, tag, cost=None, wait=None):
        """A context manager that waits for a turn of `tag`, for `wait` seconds at most (by default as
        long as the door allows), and gives it back. `cost`: the seconds that it will probably cost."""
        return self._held(_command("TAKE", tag, cost, wait))

    def try_take(self, tag, cost=None):
        """The same without waiting: raises `Busy` if no turn is free."""
        return self._held(_command("TRY", tag, cost, None))

    @contextlib.contextmanager
    def _held(self, command):
        connection, turn = self._begin(command)
        try:
            yield turn
        finally:
            if connection is not None:
                self._end(connection, turn)

    def _begin(self, command):
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            # The door may have closed it since.
            with contextlib.suppress(OSError):
                return connection, self._ask(connection, command)
        try:
            connection = self._connect()
            return connection, self._ask(connection, command)
        except OSError as error:
            log.warning("no turn, because the door at %s does not answer: %s", self._address, error)
            return None, Turn()

    def _ask(self, connection, command):
        try:
            connection.sendall(command)
            return _read_turn(connection.makefile("rb").readline())
        except EvenkeelError:
            self._keep(connection)
            raise
        except BaseException:
            connection.close()
            raise

    def _connect(self):
        is_file = isinstance(self._address, str)
        if is_file:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._connect_timeout)
            connection.connect(self._address)
        else:
            connection = socket.create_connection(self._address, self._connect_timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        return connection

    def _end(self, connection, turn):
        try:
            connection.sendall(_done(turn))
            if connection.makefile("rb").readline():
                self._keep(connection)
                return
        except OSError:
            pass
        connection.close()

    def _keep(self, connection):
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


class AsyncTurns:
    """Turns for asyncio."""

    def __init__(self, address="tcp://127.0.0.1:7070", connect_timeout=1.0):
        self._address, self._connect_timeout = _address(address), connect_timeout
        self._idle = []

    def take(self, tag, cost=None, wait=None):
        """As `Turns.take`, with `async with`."""
        return self._held(_command("TAKE", tag, cost, wait))

    def try_take(self, tag, cost=None):
        """As `Turns.try_take`, with `async with`."""
        return self._held(_command("TRY", tag, cost, None))

    @contextlib.asynccontextmanager
    async def _held(self, command):
        streams, turn = await self._begin(command)
        try:
            yield turn
        except asyncio.CancelledError:
            # Closing gives the turn back without waiting for an answer.
            if streams is not None:
                streams[1].close()
                streams = None
            raise
        finally:
            if streams is not None:
                await self._end(streams, turn)

    async def _begin(self, command):
        if self._idle:
            streams = self._idle.pop()
            with contextlib.suppress(OSError):
                return streams, await self._ask(streams, command)
        try:
            streams = await asyncio.wait_for(self._connect(), self._connect_timeout)
            return streams, await self._ask(streams, command)
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("no turn, because the door at %s does not answer: %s", self._address, error)
            return None, Turn()

    async def _connect(self):
        if isinstance(self._address, str):
            return await asyncio.open_unix_connection(self._address)
        return await asyncio.open_connection(*self._address)

    async def _ask(self, streams, command):
        reader, writer = streams
        try:
            writer.write(command)
            await writer.drain()
            return _read_turn(await reader.readline())
        except EvenkeelError:
            self._keep(streams)
            raise
        except BaseException:
            writer.close()
            raise

    async def _end(self, streams, turn):
        reader, writer = streams
        try:
            writer.write(_done(turn))
            await writer.drain()
            if await reader.readline():
                self._keep(streams)
                return
        except OSError:
            pass
        writer.close()

    def _keep(self, streams):
        if len(self._idle) < IDLE_MAX:
            self._idle.append(streams)
        else:
            streams[1].close()
