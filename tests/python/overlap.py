"""The installed package `op-dbus` with more calls than go out at a time, and nobody but itself: what
answers is in here, and so is the clock, which stands where nothing waits for it."""

import asyncio
import faulthandler
import os
import selectors
import signal
import tempfile
import threading
from dataclasses import replace
from unittest import mock

import numpy as np
from dbus_fast import Message, MessageType, Variant

from op_dbus import AsyncEmbedder, AsyncJob, Embedder, Properties, _sync, errors
from op_dbus._bus import CALLS_MAX, Bus
from op_dbus.embeddings import from_reply

INFO = dict.fromkeys(("level", "model", "provider", "device", "precision", "space"), "x")
INFO |= dict.fromkeys(("tokens", "cached", "queue_us", "compute_us"), 1) | {"truncated": []}


class Jumping(selectors.DefaultSelector):
    """Where nothing happens it goes to the time that is waited for."""

    now = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


def in_time_of_its_own(work) -> None:
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())


class Service:
    """In the place of a connection: answers each call after so many seconds, without them never."""

    connected = True

    def __init__(self, seconds: float | None = None) -> None:
        self.sent: list[Message] = []
        self.files: list[tuple[int, int]] = []
        self.goes_on = asyncio.Event()
        self._seconds = seconds
        self._serial = 0

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    async def call(self, message: Message) -> Message:
        self.sent.append(message)
        if self._seconds is None:
            await self.goes_on.wait()
        else:
            await asyncio.sleep(self._seconds)
        if not self.connected:
            raise EOFError
        self.files += [inode(descriptor) for descriptor in message.unix_fds]
        if message.member == "StartEmbedFromFd":
            return answer(message, "o", ["/job"])
        rows = len(message.body[0])
        if message.member == "CountTokens":
            return answer(message, "au", [[1] * rows])
        types = {str: "s", int: "t", list: "au"}
        info = {key: Variant(types[type(value)], value) for key, value in INFO.items()}
        return answer(message, "ayuua{sv}", [bytes(4 * rows), rows, 1, info])


class Busy(Service):
    """One that refuses some calls, which are told by their numbers."""

    def __init__(self, *refused: int, name: str, sentence: str = "full; try again in 2500 ms") -> None:
        super().__init__(seconds=0)
        self._refused = refused
        self._name = name
        self._sentence = sentence

    async def call(self, message: Message) -> Message:
        reply = await super().call(message)
        is_refused = len(self.sent) in self._refused
        return refusal(message, self._name, self._sentence) if is_refused else reply


class Small(Service):
    """One that takes so many bytes in a call."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(seconds=0)
        self._bytes_max = bytes_max

    async def call(self, message: Message) -> Message:
        reply = await super().call(message)
        is_large = sum(map(len, message.body[0])) > self._bytes_max
        return refusal(message, "TooLarge", "the call is large") if is_large else reply


class Failing(Service):
    """One with a job that has failed, which is gone once that was told. So many fetches before do not
    get there: the bus refuses them."""

    def __init__(self, name: str, sentence: str, refused: int = 0) -> None:
        super().__init__()
        self._reason = name, sentence
        self._refused = refused
        self._has_job = True

    async def call(self, message: Message) -> Message:
        self.sent.append(message)
        if self._has_job and message.member == "GetAll":
            return answer(message, "a{sv}", [job_in("failed")])
        if self._refused and message.member == "Fetch":
            self._refused -= 1
            return refusal(message, "Overloaded", "the bus takes no replies")
        if self._has_job and message.member == "Fetch":
            self._has_job = False
            return refusal(message, *self._reason)
        gone = dict(error_name=errors.UnknownObject.dbus_name, signature="s", body=["Unknown object"])
        return Message(message_type=MessageType.ERROR, reply_serial=message.serial, **gone)


class Leaving(Service):
    """One that can be left, by which calls under way fail, as dbus-fast's do."""

    def send(self, message: Message) -> asyncio.Future:
        self.sent.append(message)
        return asyncio.get_running_loop().create_future()

    def disconnect(self) -> None:
        self.connected = False
        self.goes_on.set()

    async def wait_for_disconnect(self) -> None:
        assert not self.connected


class Garbled(Leaving):
    """One whose connection has ended with what could not be read, and that leaves calls without an answer."""

    def disconnect(self) -> None:
        self.connected = False

    async def wait_for_disconnect(self) -> None:
        raise ValueError("that is no message")


def job_in(state: str) -> dict[str, Variant]:
    """The properties of a job."""
    numbers = dict.fromkeys(("Rows", "BytesRead", "BytesTotal"), Variant("t", 1))
    return {"State": Variant("s", state)} | numbers


def refusal(message: Message, name: str, sentence: str) -> Message:
    error = dict(error_name=f"org.opdbus.Embedding1.Error.{name}", signature="s", body=[sentence])
    return Message(message_type=MessageType.ERROR, reply_serial=message.serial, **error)


def answer(message: Message, signature: str, body: list) -> Message:
    kind = MessageType.METHOD_RETURN
    return Message(message_type=kind, reply_serial=message.serial, signature=signature, body=body)


def client(service: Service, texts_per_call_max: int = 1_000) -> AsyncEmbedder:
    embedder = AsyncEmbedder()
    embedder._bus = Bus(service)
    # Whose answers come in messages.
    embedder._has_descriptors = False
    limits = Properties(**dict.fromkeys(Properties.__dataclass_fields__, 1 << 30))
    limits = replace(limits, texts_per_call_max=texts_per_call_max, vector_space="x-f32")

    async def properties(_: float | None) -> Properties:
        return limits

    embedder._properties = properties
    return embedder


def with_a_thread(service: Leaving) -> Embedder:
    async def connect(_: str) -> Bus:
        return Bus(service)

    with mock.patch.object(Bus, "connect", connect):
        return Embedder()


def inode(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


async def ended(calls) -> list:
    return await asyncio.gather(*calls, return_exceptions=True)


async def a_turn_is_not_the_deadline() -> None:
    """A service that answers each call in time has time for all, however many wait."""
    service = Service(seconds=4)
    embedder = client(service)
    calls = [embedder.embed(["one"], deadline_ms=1000) for _ in range(10 * CALLS_MAX)]
    failed = [one for one in await ended(calls) if isinstance(one, Exception)]
    assert (len(failed), len(service.sent)) == (0, 10 * CALLS_MAX), failed[0]


async def the_rest_of_a_long_list_waits_for_room() -> None:
    """Of which the vectors that are here would be lost; a first call loses none."""
    now = asyncio.get_running_loop().time

    async def asked(service: Service, method: str = "embed", **options) -> tuple:
        embedder, began = client(service, texts_per_call_max=1), now()
        call = getattr(embedder, method)(["one", "two", "three"], **options)
        (found,) = await ended([call])
        told = type(found) if isinstance(found, Exception) else len(found)
        return told, len(service.sent), now() - began

    for kind in (errors.Overloaded, errors.QuotaExceeded):
        name = kind.__name__
        always = range(2, 1000)
        for method in ("embed", "count_tokens"):
            assert await asked(Busy(2, 3, 5, name=name), method) == (3, 6, 7.5)
            assert await asked(Busy(1, name=name), method) == (kind, 1, 0)
            # Nor is it waited for without end.
            assert await asked(Busy(*always, name=name), method) == (kind, 50, 120)
        assert await asked(Busy(2, name=name, sentence="full; try again in 30 s")) == (3, 4, 30)
        assert await asked(Busy(2, name=name, sentence="full; come back")) == (3, 4, 1)
        # No longer than for vectors: until then, with what the calls before have left.
        assert await asked(Busy(*always, name=name), deadline_ms=5_000) == (kind, 3, 2.5)
        assert await asked(Busy(2, 3, name=name), deadline_ms=200_000) == (3, 5, 5)
        assert await asked(Busy(*always, name=name), deadline_ms=200_000) == (kind, 50, 120)
    assert await asked(Busy(2, name="WorkerFailed")) == (errors.WorkerFailed, 2, 0)


async def a_deadline_is_for_a_whole_list() -> None:
    """Each of its calls has what those before have left, and none is sent when that is nothing."""
    loop = asyncio.get_running_loop()

    async def asked(service: Service, deadline_ms: int) -> tuple:
        embedder, began = client(service, texts_per_call_max=1), loop.time()
        (found,) = await ended([embedder.embed(["x"] * 4, deadline_ms=deadline_ms)])
        told = [message.body[1]["deadline_ms"].value for message in service.sent]
        return found if isinstance(found, Exception) else len(found), told, loop.time() - began

    assert await asked(Service(seconds=0), 5_000) == (4, [5_000] * 4, 0)
    assert await asked(Service(seconds=1), 5_000) == (4, [5_000, 4_000, 3_000, 2_000], 4)
    for deadline_ms, left in ((2_000, [2_000, 1_000]), (2_500, [2_500, 1_500, 500])):
        late, *told = await asked(Service(seconds=1), deadline_ms)
        words = f"deadline_ms ({deadline_ms}) passed before all texts were embedded: allow more time"
        assert type(late) is errors.DeadlineExceeded and str(late).startswith(words), late
        assert told == [left, len(left)], told
    # One that hangs by the third call is waited for a little longer than that.
    service = Service(seconds=1)
    loop.call_later(1.5, setattr, service, "_seconds", None)
    late, *told = await asked(service, 2_500)
    assert type(late) is errors.DeadlineExceeded and "did not answer within 5.5 s" in str(late), late
    assert told == [[2_500, 1_500, 500], 7.5], told


async def what_was_too_large_is_not_tried_again() -> None:
    """Once a call was small enough, so are the others."""
    for method in ("embed", "count_tokens"):
        service = Small(1000)
        found = await getattr(client(service), method)(["x" * 100] * 100)
        sent = [len(message.body[0]) for message in service.sent]
        assert (len(found), sent) == (100, [100, 50, 25, 12, *[6] * 16, 4]), sent


async def refusals_name_the_text_by_its_number_in_the_list() -> None:
    async def told(service: Service, texts: list[str]) -> tuple:
        (refused,) = await ended([getattr(client(service, texts_per_call_max=20), method)(texts)])
        return type(refused), str(refused), len(service.sent)

    for method in ("embed", "count_tokens"):
        words = "text 7 can't be tokenized: no"
        service = Busy(2, name="InvalidArgument", sentence=words)
        right = "text 27 can't be tokenized: no"
        assert await told(service, ["x"] * 50) == (errors.InvalidArgument, right, 2)
        # One that is named is no smaller in another call.
        service = Busy(2, name="TooLarge", sentence="the size of text 7 is 9; split the text")
        right = "the size of text 27 is 9; split the text"
        assert await told(service, ["x"] * 50) == (errors.TooLarge, right, 2)
        # One that is alone need not be named by the service.
        texts = ["x"] * 25 + ["x" * 2000] + ["x"] * 25
        right = "text 25: the call is large"
        assert await told(Small(1000), texts) == (errors.TooLarge, right, 4)


async def counts_of_a_long_list_are_of_one_model() -> None:
    """Which no option of the call asks for; where one call is enough nobody looks."""

    async def counted(spaces: list[str], service: Service, texts_per_call_max: int = 1) -> tuple:
        embedder = client(service, texts_per_call_max)
        limits = await embedder._constant(None)

        async def properties() -> Properties:
            return replace(limits, vector_space=spaces.pop(0))

        embedder.properties = properties
        (found,) = await ended([embedder.count_tokens(["one", "two"])])
        assert not spaces, spaces
        return len(service.sent), str(found)

    # The precision says nothing about tokens.
    assert await counted(["x-f32", "x-bf16"], Service(seconds=0)) == (2, "[1, 1]")
    # Nor does a look at which no model serves, as while one is loaded again.
    assert await counted(["", "x-f32", "x-f32"], Service(seconds=0)) == (2, "[1, 1]")
    assert await counted(["x-f32", ""], Service(seconds=0)) == (2, "[1, 1]")
    assert await counted(["", ""], Service(seconds=0)) == (2, "[1, 1]")
    assert await counted([], Service(seconds=0), texts_per_call_max=2) == (1, "[1, 1]")
    words = "the model was changed between two calls for these texts: count them again"
    assert await counted(["x-f32", "y-f32"], Service(seconds=0)) == (2, words)
    assert await counted(["", "x-f32", "y-f32"], Service(seconds=0)) == (2, words)
    # Two are one call first, which is refused.
    assert await counted(["x-f32", "y-f32"], Small(3), texts_per_call_max=2) == (3, words)


async def calls_that_nobody_waits_for_are_not_sent() -> None:
    service = Service()
    embedder = client(service)
    calls = [embedder.embed(["one"], deadline_ms=1000) for _ in range(3 * CALLS_MAX)]
    said = [str(one) for one in await ended(calls)]
    words = "the service did not answer within 6 s, well past deadline_ms: look whether it runs"
    assert said[:CALLS_MAX] == [words] * CALLS_MAX, said
    words = "none of 64 calls before this one was answered within 6 s: look whether the service runs"
    assert said[CALLS_MAX:] == [words] * 2 * CALLS_MAX, said
    # Cancelled in its turn, before it, and at the moment when its turn comes.
    late = [asyncio.create_task(embedder.embed(["late"])) for _ in range(3)]
    await asyncio.sleep(1)
    late[0].cancel()
    await asyncio.sleep(1)
    service.goes_on.set()
    while embedder._bus._room._waiting:
        await asyncio.sleep(0)
    late[1].cancel()
    kinds = [type(one).__name__ for one in await ended(late)]
    assert kinds == ["CancelledError", "CancelledError", "Embeddings"], kinds
    assert len(service.sent) == CALLS_MAX + 1, len(service.sent)
    sent = []

    async def given_up() -> None:
        try:
            await embedder.embed(["given up"])
        finally:
            sent.append(len(service.sent))

    for turns in range(1, 8):
        call = asyncio.create_task(given_up())
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await ended([call])
        await asyncio.sleep(1)
        assert len(service.sent) == sent[-1], turns
    # No place was lost on the way.
    assert embedder._bus._room._free == CALLS_MAX


async def files_are_the_ones_that_were_given() -> None:
    """Whoever closes them meanwhile, and none stays open."""
    before = len(os.listdir("/proc/self/fd"))
    service = Service()
    embedder = client(service)
    busy = [asyncio.create_task(embedder.embed(["one"])) for _ in range(CALLS_MAX)]
    await asyncio.sleep(1)
    with tempfile.TemporaryFile() as given:
        wanted = inode(given.fileno())
        source = os.dup(given.fileno())
        starting = asyncio.create_task(embedder.start(source))
        leaving = asyncio.create_task(embedder.start(source))
        await asyncio.sleep(1)
        leaving.cancel()
        await ended([leaving])
        os.close(source)
        with tempfile.TemporaryFile() as other:
            assert other.fileno() == source
            service.goes_on.set()
            job = await starting
    await ended(busy)
    assert (job.path, service.files) == ("/job", [wanted]), (wanted, service.files)
    # Those of the tasks are closed when the loop hears of their ends.
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == before


async def a_job_that_nobody_knows_of_ends() -> None:
    """It would take one of the few that run at once, and its result be kept."""
    service = Service(seconds=4)
    service.send = lambda message: (service.sent.append(message), asyncio.Future())[1]
    with tempfile.TemporaryFile() as given:
        leaving = asyncio.create_task(client(service).start(given))
        await asyncio.sleep(1)
        leaving.cancel()
        await ended([leaving])
        await asyncio.sleep(4)
    said = [(message.member, message.path) for message in service.sent[1:]]
    assert said == [("Cancel", "/job")], said


async def a_result_waits_for_who_asks_again() -> None:
    """Also one that was on its way already."""
    job = AsyncJob(Bus(Service()), "/job", "f32")
    states, asked, comes = ["running", "done"], [], asyncio.Event()

    async def call(member, *_, **__):
        asked.append(member)
        if member == "GetAll":
            return [job_in(states.pop(0))], []
        raise AssertionError(member)

    async def fetch(_: bool):
        asked.append("Fetch")
        await comes.wait()
        return from_reply(np.zeros((1, 2), dtype=np.float32), 2, INFO)

    job._bus.call, job._fetch = call, fetch
    first = asyncio.create_task(job.result())
    await asyncio.sleep(1)
    first.cancel()
    await ended([first])
    assert asked == ["GetAll", "GetAll", "Fetch"], asked
    comes.set()
    # A thread may have gone at the moment when it came.
    kept = await job.result()
    assert await job.result() is kept and len(kept) == 1
    assert (await job.progress()).state == "done"
    assert asked == ["GetAll", "GetAll", "Fetch"], asked


async def who_asks_while_another_fetches_has_the_same() -> None:
    """For the service the job is gone by then."""
    job = AsyncJob(Bus(Service()), "/job", "f32")
    result = from_reply(np.zeros((1, 2), dtype=np.float32), 2, INFO)
    looks, is_taken, is_gone = [], asyncio.Event(), asyncio.Event()

    async def call(member, *_, **__):
        looks.append(member)
        if len(looks) == 2:
            await is_taken.wait()
            is_gone.set()
            raise errors.UnknownObject("Unknown object '/job'")
        # The other one looks as well before this one hears.
        await asyncio.sleep(0)
        return [job_in("done")], []

    async def fetch(_: bool):
        is_taken.set()
        # Nobody may come to look.
        await asyncio.wait_for(is_gone.wait(), 60)
        return result

    job._bus.call, job._fetch = call, fetch
    assert await ended([job.result(), job.result()]) == [result, result]
    assert looks == ["GetAll", "GetAll"], looks


async def what_can_not_be_handed_over_stays() -> None:
    job = AsyncJob(Bus(Service()), "/job", "f32")
    result = from_reply(np.zeros((1, 2), dtype=np.float32), 2, INFO)
    outcomes = [errors.NoSpace("there is no descriptor; fetch it later"), result]

    async def call(*_, **__):
        return [job_in("done")], []

    async def fetch(_: bool):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    job._bus.call, job._fetch = call, fetch
    (refused,) = await ended([job.result()])
    assert type(refused) is errors.NoSpace, refused
    assert await job.result() is result and await job.result() is result


async def a_job_that_failed_says_so_again() -> None:
    """The service knows no more of it."""
    service = Failing("TooLong", "line 2 is long")
    job = AsyncJob(Bus(service), "/job", "f32")
    for _ in range(2):
        (failed,) = await ended([job.result()])
        assert (type(failed), str(failed)) == (errors.TooLong, "line 2 is long"), failed
        assert (await job.progress()).state == "failed"
        await job.cancel()
    said = [message.member for message in service.sent]
    assert said == ["GetAll", "Fetch", "Cancel", "Cancel"], said


async def what_refuses_a_fetch_is_not_what_its_job_failed_with() -> None:
    """Both can be ``Overloaded``: whether the job is there tells."""
    for name, looks in (("TooLong", []), ("Overloaded", ["GetAll"])):
        service = Failing(name, "its own reason", refused=2)
        job = AsyncJob(Bus(service), "/job", "f32")
        told = []
        for _ in range(4):
            (failed,) = await ended([job.result()])
            told.append((type(failed).__name__, str(failed)))
        passing, kept = ("Overloaded", "the bus takes no replies"), (name, "its own reason")
        assert told == [passing, passing, kept, kept], told
        said = [message.member for message in service.sent]
        assert said == ["GetAll", "Fetch", "GetAll"] * 2 + ["GetAll", "Fetch", *looks], said


def a_job_that_comes_when_its_thread_gives_up_ends() -> None:
    """Nobody but the loop knows of it: its call has ended, and the thread has not heard of that."""
    service = Leaving(seconds=0)
    embedder = with_a_thread(service)
    start = embedder._client.start
    # What a handler raises, and a time that is over.
    for raised in (TimeoutError("of a handler"), KeyboardInterrupt("of a handler"), None):
        has_come, has_gone = threading.Event(), threading.Event()

        def give_way() -> None:
            has_come.set()
            assert has_gone.wait(60)

        async def started(*asked, **options) -> AsyncJob:
            job = await start(*asked, **options)
            # The loop comes to this before it tells the thread.
            asyncio.get_running_loop().call_soon(give_way)
            return job

        def give_up(*_) -> bool:
            assert has_come.wait(60)
            if raised is not None:
                raise raised
            return False

        embedder._client.start = started
        service.sent.clear()
        with (
            tempfile.TemporaryFile() as given,
            mock.patch.object(_sync._Call, "wait", give_up),
        ):
            try:
                embedder.start(given)
            except (TimeoutError, KeyboardInterrupt) as error:
                has_gone.set()
                if raised is None:
                    assert str(error).startswith("no answer within "), error
                else:
                    assert error is raised, error
            else:
                raise AssertionError(f"a job in place of {raised!r}")
        # What was asked of the loop before is done then.
        embedder._wait(asyncio.sleep(0))
        said = [(message.member, message.path) for message in service.sent[1:]]
        assert said == [("Cancel", "/job")], (raised, said)
    embedder.close()


def a_signal_may_close_whatever_its_thread_does() -> None:
    """Its handler comes in before, in and after what asks the loop, and waits for that loop."""
    faulthandler.dump_traceback_later(60, exit=True)
    places = [("call_soon_threadsafe", True), ("_call_soon", True), ("call_soon_threadsafe", False)]
    for name, is_before in places:
        embedder = with_a_thread(Leaving())
        signal.signal(signal.SIGUSR1, lambda *_: embedder.close())
        original, comes = getattr(embedder._loop, name), iter([signal.SIGUSR1])

        def interrupted(*asked, **options):
            # It asks as well.
            is_first = next(comes, None) is not None
            if is_first and is_before:
                signal.raise_signal(signal.SIGUSR1)
            handle = original(*asked, **options)
            if is_first and not is_before:
                signal.raise_signal(signal.SIGUSR1)
            return handle

        with mock.patch.object(embedder._loop, name, interrupted):
            try:
                embedder.embed(["one"])
            except RuntimeError as error:
                assert str(error) == "this client was closed meanwhile", (name, error)
            else:
                raise AssertionError(f"vectors of a client that was closed in {name}")
        has_ended(embedder)
    # As in `Thread.start`, with what the client's thread ends with as well.
    embedder = with_a_thread(Leaving())
    signal.signal(signal.SIGUSR1, lambda *_: embedder.close())
    with threading._active_limbo_lock:
        signal.raise_signal(signal.SIGUSR1)
        assert embedder._loop.is_closed()
    has_ended(embedder)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    faulthandler.cancel_dump_traceback_later()


def a_handler_does_not_lengthen_a_timeout() -> None:
    """One that comes before the time is over, and ends after it."""
    faulthandler.dump_traceback_later(60, exit=True)
    embedder = with_a_thread(Leaving())
    embedder._timeout = 0.2
    signal.signal(signal.SIGALRM, lambda *_: threading.Event().wait(0.2))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        embedder.properties()
    except TimeoutError as error:
        assert str(error).startswith("no answer within 0.2 s"), error
    else:
        raise AssertionError("an answer of a service that gives none")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    embedder.close()
    has_ended(embedder)
    faulthandler.cancel_dump_traceback_later()


def what_a_handler_raises_arrives() -> None:
    """Also where it is of the kind that tells of a client that was closed, and the handler closes it."""

    class Stop(RuntimeError):
        pass

    embedder = with_a_thread(Leaving())

    def interrupted(*_) -> None:
        embedder.close()
        raise Stop

    with mock.patch.object(_sync._Call, "wait", interrupted):
        try:
            embedder.embed(["one"])
        except Stop:
            pass
        else:
            raise AssertionError("vectors of a client that was closed")
    has_ended(embedder)


def a_client_closes_however_its_connection_ended() -> None:
    """And who waits for an answer is told, also where the client can't be closed."""

    async def refuse() -> None:
        raise OSError("of the client")

    for told in ("None", "of the client"):
        service, said = Garbled(), []
        embedder = with_a_thread(service)
        if told != "None":
            embedder._client.close = refuse
            # The loop complains of the call that it is left with.
            embedder._loop.set_exception_handler(lambda *_: None)

        def asks() -> None:
            try:
                embedder.embed(["one"])
            except RuntimeError as error:
                said.append(str(error))

        asking = threading.Thread(target=asks, daemon=True)
        asking.start()
        while not service.sent:
            os.sched_yield()
        try:
            found = embedder.close()
        except OSError as error:
            found = error
        assert str(found) == told, found
        asking.join(60)
        assert said == ["this client was closed meanwhile"], said
        has_ended(embedder)


def has_ended(embedder: Embedder) -> None:
    embedder._thread.join(60)
    assert not embedder._thread.is_alive()


async def who_closes_while_it_connects_has_left() -> None:
    """Before a service that hangs goes on."""

    async def left(moment: str, direct: bool = True) -> tuple:
        """What ``connect`` ends with, and what was sent."""
        bus, line, goes_on = Leaving(), Leaving(), asyncio.Event()

        async def connect(_: str) -> Bus:
            if moment == "connect":
                await goes_on.wait()
            return Bus(bus)

        async def opened(_: Bus) -> Bus:
            await goes_on.wait()
            return Bus(line)

        replaced = {"connect": connect} | ({"direct": opened} if moment == "opened" else {})
        with mock.patch.multiple(Bus, **replaced):
            embedder = AsyncEmbedder(direct=direct)
            connecting = asyncio.create_task(embedder.connect())
            await asyncio.sleep(1)
            closing = asyncio.create_task(embedder.close())
            await asyncio.sleep(1)
            goes_on.set()
            await asyncio.wait_for(closing, 60)
            (found,) = await ended([connecting])
            assert embedder._bus is None and embedder._line is None, moment
            assert not bus.connected and line.connected == (moment != "opened"), moment
            if moment == "opened":
                await embedder.connect()
                assert embedder._line is not None
                await embedder.close()
        return type(found), [message.member for message in bus.sent]

    none = type(None)
    assert await left("connect", direct=False) == (none, [])
    assert await left("connect") == (none, [])
    assert await left("OpenDirect") == (errors.NotReachable, ["OpenDirect"])
    assert await left("opened") == (none, [])


async def a_close_that_is_cancelled_has_left() -> None:
    """Both connections, of which each takes its time."""

    class Slow(Leaving):
        async def wait_for_disconnect(self) -> None:
            await asyncio.Event().wait()

    bus, line = Slow(), Slow()
    embedder = client(bus)
    embedder._line = Bus(line)
    closing = asyncio.create_task(embedder.close())
    await asyncio.sleep(1)
    closing.cancel()
    await ended([closing])
    assert (bus.connected, line.connected) == (False, False)


in_time_of_its_own(a_turn_is_not_the_deadline)
in_time_of_its_own(the_rest_of_a_long_list_waits_for_room)
in_time_of_its_own(a_deadline_is_for_a_whole_list)
in_time_of_its_own(what_was_too_large_is_not_tried_again)
in_time_of_its_own(refusals_name_the_text_by_its_number_in_the_list)
in_time_of_its_own(counts_of_a_long_list_are_of_one_model)
in_time_of_its_own(calls_that_nobody_waits_for_are_not_sent)
in_time_of_its_own(files_are_the_ones_that_were_given)
in_time_of_its_own(a_job_that_nobody_knows_of_ends)
in_time_of_its_own(a_result_waits_for_who_asks_again)
in_time_of_its_own(who_asks_while_another_fetches_has_the_same)
in_time_of_its_own(what_can_not_be_handed_over_stays)
in_time_of_its_own(a_job_that_failed_says_so_again)
in_time_of_its_own(what_refuses_a_fetch_is_not_what_its_job_failed_with)
in_time_of_its_own(who_closes_while_it_connects_has_left)
in_time_of_its_own(a_close_that_is_cancelled_has_left)
a_job_that_comes_when_its_thread_gives_up_ends()
a_signal_may_close_whatever_its_thread_does()
a_handler_does_not_lengthen_a_timeout()
what_a_handler_raises_arrives()
a_client_closes_however_its_connection_ended()
