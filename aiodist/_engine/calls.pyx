# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""The way of small calls between two processes: see `calls.pyi`."""

import asyncio
import sys

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from aiodist._engine.handle cimport sent
from aiodist._engine.plain cimport Room

from aiodist.base.errors import WireError

cdef extern from "Python.h":
    int PYGEN_RETURN, PYGEN_NEXT
    int PyIter_Send(object iterator, object value, PyObject** result) except -1
    bint PyCoro_CheckExact(object x)
    object PyContext_Copy(object context)
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1
    int PyContextVar_Get(object variable, PyObject* default, PyObject** value) except -1
    object PyContextVar_Set(object variable, object value)

cdef extern from "handle.h":
    object bare_new(object kind)
    ctypedef void* sender
    void set_sender(object kind, sender send)

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()

cdef enum:
    CALL = 1  # as `net/wire/calls.py` has these
    RESULT = 16
    HEAD = 13
    BEFORE = 10
    MAX_NAME = 255
    PIECE = 64 << 10
    MOST_AT_ONCE = PIECE + BEFORE + MAX_NAME
    FEW_BYTES = 2 << 10  # as `net/wire/objects.py`: nothing in so few takes long
    AT_ONCE = 32  # tasks that are started before the loop turns
    PARTS = 1 << 20  # as `group/services/fields.py`
    FEW = 16  # as `group/services/frames.py` has these two
    PART = 4

cdef uint64_t KINDS = 0  # a bit for each kind of frame there is
for _kind in (1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 32, 33):
    KINDS |= <uint64_t>1 << <int>_kind

cdef bint IS_EAGER = sys.version_info >= (3, 12)


cdef class OpenCall:
    cdef public uint64_t number
    cdef public object kind, stopped
    cdef public int64_t nbytes, credit
    cdef public double deadline

    def __cinit__(self, *_, **__):
        self.stopped, self.credit = "", PARTS


cdef class AskedFields(OpenCall):
    cdef public object waiter, name, payload, timer, by
    cdef public int64_t untold

    def __init__(self, kind, waiter):
        self.kind, self.waiter = kind, waiter


cdef class ServedFields(OpenCall):
    cdef public object work, room, slot
    cdef public bint begun, started

    def __init__(self, uint64_t number, kind, int64_t nbytes, double deadline):
        self.number, self.kind, self.nbytes, self.deadline = number, kind, nbytes, deadline


cdef class HandlerFields:
    cdef public object name, function, slots
    cdef public bint streams, quick
    cdef public Py_ssize_t least
    cdef public double most
    cdef public list builders


cdef class SlotsFields:
    cdef public Py_ssize_t free
    cdef public object line


cdef class TableFields:
    cdef public dict calls
    cdef public int64_t nbytes
    cdef public uint64_t last
    cdef public double due

    def __cinit__(self):
        self.calls, self.due = {}, INFINITY

    cdef bint fits(self, int64_t nbytes, Py_ssize_t most, int64_t window) noexcept:
        cdef Py_ssize_t count = len(self.calls)
        return count == 0 or (count < most and self.nbytes + nbytes <= window)

    cdef bint enter(self, OpenCall call) except -1:
        """Enter a call → whether it has the earliest deadline."""
        self.calls[call.number] = call
        self.nbytes += call.nbytes
        if call.deadline < self.due:
            self.due = call.deadline
            return True
        return False


cdef class Matcher:
    cdef bint take(self, FrameEnd end, int kind, uint64_t number, const char* body, size_t nbytes) except -1:
        """Take a frame, if it is a usual one; else nothing has happened."""
        return False


cdef class FrameEnd:
    cdef public bint over, full, holds
    cdef public int together
    cdef public Matcher matcher
    cdef public dict bodies, lanes
    cdef Room out, rest
    cdef int count  # frames in `out`
    cdef int started  # tasks, for frames that came together
    cdef bint paused  # frames wait in `rest` until the loop has turned
    cdef size_t needed
    cdef object call_soon

    def __cinit__(self, *_, **__):
        self.out, self.rest = Room.__new__(Room), Room.__new__(Room)

    def set_up(self, call_soon, dict bodies not None, dict lanes not None):
        self.call_soon, self.bodies, self.lanes = call_soon, bodies, lanes

    # ── sending ──

    def send(self, bytes data not None, *, Py_ssize_t many=0):
        cdef size_t nbytes = len(data)
        if not self.over:
            memcpy(self.out.grow(nbytes), <const char*>data, nbytes)
            self.sent(many)

    cdef int sent(self, Py_ssize_t many) except -1:
        """Have a frame that was written leave: now, or with others of this turn of the loop."""
        cdef Py_ssize_t parts
        if not self.holds:
            if many < 2 and self.together < 2:  # several had answers together, and may ask again
                self._write(self.out.take())
                return 0
            self.holds = True
            self.call_soon(self.flush)
        self.count += 1
        parts = self.count * PART
        if self.count >= FEW and parts >= many and parts >= self.together:
            self.count = 0  # the other side begins with these while the rest is made
            self._write(self.out.take())
        return 0

    def flush(self):
        self.holds, self.count = False, 0
        if self.out.nbytes:
            self._write(self.out.take())

    def forget_held(self):
        self.holds, self.count = False, 0
        self.out.nbytes = 0

    cdef int head(self, int kind, uint64_t number, size_t nbytes, size_t at) except -1:
        """Write the head of a frame whose body lies behind it."""
        cdef char* to = self.out.data + at
        cdef uint32_t size = <uint32_t>nbytes
        memcpy(to, &size, 4)
        to[4] = <char>kind
        memcpy(to + 5, &number, 8)
        return 0

    cdef bint answer(self, uint64_t number, result, Py_ssize_t many) except -1:
        """Write a RESULT, if it is small and plain; `sent` follows. Runs no Python code."""
        cdef size_t at = self.out.nbytes
        self.out.grow(HEAD)
        if not self.out.write_plain(result) or self.out.nbytes - at > HEAD + PIECE:
            self.out.nbytes = at
            return False
        self.head(RESULT, number, self.out.nbytes - at - HEAD, at)
        return True

    # ── receiving ──

    def deliver(self, bytes data not None):
        cdef const char* begin
        cdef size_t at = 0, end, size
        cdef uint32_t nbytes
        cdef uint64_t number
        cdef int kind, count = 0
        cdef Matcher matcher
        if self.paused and data:
            size = len(data)
            memcpy(self.rest.grow(size), <const char*>data, size)
            return
        self.paused, self.started = False, 0
        if self.rest.nbytes:
            size = len(data)
            memcpy(self.rest.grow(size), <const char*>data, size)
            if self.rest.nbytes < self.needed:
                self.together = 0
                return
            data = self.rest.take()
        begin, end = <const char*>data, len(data)
        self.needed = HEAD
        while end - at >= HEAD:  # no frame is taken before the heads of all are known to be right
            memcpy(&nbytes, begin + at, 4)
            kind = <unsigned char>begin[at + 4]
            if nbytes > MOST_AT_ONCE or kind >= 64 or not KINDS >> kind & 1:
                raise WireError(f"a frame of {nbytes} bytes and kind {kind}, which calls do not have")
            if end - at - HEAD < nbytes:
                self.needed = HEAD + <size_t>nbytes
                break
            at += HEAD + nbytes
            count += 1
        memcpy(self.rest.grow(end - at), begin + at, end - at)
        self.together = count
        end, at = at, 0
        while at < end and not self.over:
            memcpy(&nbytes, begin + at, 4)
            kind = <unsigned char>begin[at + 4]
            memcpy(&number, begin + at + 5, 8)
            at += HEAD
            matcher = self.matcher  # held: what it calls may take it away
            if matcher is None or self.bodies or not matcher.take(self, kind, number, begin + at, nbytes):
                self._frame(kind, number, begin[at : at + nbytes])
            at += nbytes
            if self.started >= AT_ONCE and at < end and <size_t>len(data) - at <= PIECE:
                # These begin and answer before others come: the loop turns meanwhile, and less is alive at once.
                self.paused, self.needed, self.rest.nbytes = True, 0, 0
                size = len(data) - at
                memcpy(self.rest.grow(size), begin + at, size)
                self.call_soon(self._received, b"")
                return


@cython.final
cdef class Asker(Matcher):
    cdef FrameEnd end
    cdef TableFields asking
    cdef object waiting, messages
    cdef object make, by, call, message, time, create_future, alarm, room, decoded
    cdef Py_ssize_t most
    cdef int64_t window

    def __init__(self, FrameEnd end not None, TableFields asking not None, waiting,
                 messages, loop, *, make, by, call, message, alarm, room, int decoded, most, window):
        self.end, self.asking, self.waiting, self.messages = end, asking, waiting, messages
        self.time, self.create_future = loop.time, loop.create_future
        self.make, self.by, self.call, self.message, self.alarm = make, by, call, message, alarm
        self.room, self.decoded = room, decoded
        self.most, self.window = most, window

    def ask(self, kind, bytes name not None, value, double timeout):
        cdef FrameEnd end = self.end
        cdef TableFields asking = self.asking
        cdef Room out = end.out
        cdef size_t before, length = len(name)
        cdef uint16_t size = <uint16_t>length
        cdef AskedFields asked
        cdef PyObject* served = NULL
        cdef double now = self.time()
        cdef char* at
        if length > MAX_NAME:
            return None
        asked = bare_new(self.make)
        asked.kind, asked.waiter = kind, self.create_future()
        # From here on until the call is entered nothing runs Python code.
        if (end.over or end.full or end.lanes or self.waiting or self.messages
                or not asking.fits(0, self.most, self.window)):
            return None
        before = out.nbytes
        at = out.grow(HEAD + BEFORE + length) + HEAD
        timeout = max(timeout, 0.0)
        memcpy(at, &timeout, 8)
        memcpy(at + 8, &size, 2)
        memcpy(at + BEFORE, <const char*>name, length)
        if not out.write_plain(value):
            out.nbytes = before
            return None
        asked.nbytes = out.nbytes - before - (HEAD + BEFORE + length)
        if asked.nbytes > PIECE or not asking.fits(asked.nbytes, self.most, self.window):
            out.nbytes = before
            return None
        asking.last += 1
        asked.number, asked.name, asked.payload, asked.deadline = asking.last, name, b"", now + timeout
        PyContextVar_Get(self.by, NULL, &served)
        asked.by = <object>served
        Py_DECREF(asked.by)
        end.head(<int>kind, asked.number, out.nbytes - before - HEAD, before)
        if asking.enter(asked):
            end.sent(len(asking.calls))
            if asking.due < <double>self.alarm.at:
                self.alarm.set(asking.due)
        else:
            end.sent(len(asking.calls))
        return asked

    cdef bint take(self, FrameEnd end, int kind, uint64_t number, const char* body, size_t nbytes) except -1:
        cdef AskedFields asked
        cdef bint is_plain
        if kind != RESULT:
            return False
        asked = self.asking.calls.get(number)
        if asked is None:
            return False
        if asked.kind is self.call:
            value = Room.read(body, nbytes, &is_plain)
            if not is_plain or self.asking.calls.get(number) is not asked:
                return False
        elif asked.kind is self.message and not nbytes:
            value = None
        else:
            return False
        del self.asking.calls[number]
        self.asking.nbytes -= asked.nbytes
        waiter = asked.waiter
        if not waiter.done():
            waiter.set_result((self.decoded, value))
        if self.waiting:
            self.room()
        return True


@cython.final
cdef class Server(Matcher):
    cdef FrameEnd end
    cdef TableFields serving
    cdef dict handlers
    cdef object runs, make, served, call, context, time, loop, create_task, alarm, free
    cdef Py_ssize_t most
    cdef int64_t window

    def __init__(self, FrameEnd end not None, TableFields serving not None, dict handlers not None, loop, *, runs,
                 make, served, call, context, alarm, free, most, window):
        self.end, self.serving, self.handlers, self.loop = end, serving, handlers, loop
        self.runs, self.make, self.served, self.call, self.context = runs, make, served, call, context
        self.time, self.create_task, self.alarm, self.free = loop.time, loop.create_task, alarm, free
        self.most, self.window = most, window

    cdef bint take(self, FrameEnd end, int kind, uint64_t number, const char* body, size_t nbytes) except -1:
        cdef HandlerFields handler
        cdef TableFields serving = self.serving
        cdef double left
        cdef uint16_t size
        cdef list args
        cdef Py_ssize_t count
        cdef bint is_plain
        if kind != CALL or number != serving.last + 1 or nbytes < BEFORE:
            return False
        memcpy(&left, body, 8)
        memcpy(&size, body + 8, 2)
        if not left >= 0 or size > MAX_NAME or nbytes - BEFORE < size:
            return False
        body, nbytes = body + BEFORE + size, nbytes - BEFORE - size
        if nbytes > FEW_BYTES or not serving.fits(nbytes, self.most, self.window):
            return False
        try:
            name = (body - size)[:size].decode()
        except UnicodeDecodeError:
            return False
        found = self.handlers.get(name)
        if found is None:
            return False
        handler = found
        value = Room.read(body, nbytes, &is_plain)
        if type(value) is not list or handler.streams or handler.builders or (<SlotsFields>handler.slots).free <= 0:
            return False
        args = value
        count = len(args)
        if not handler.least <= count <= handler.most or end.over or number != serving.last + 1:
            return False
        serving.last = number
        if handler.quick:
            self.run(handler, number, nbytes, left, args)
        else:
            self.start(handler, number, nbytes, left, args)
        return True

    cdef int run(self, HandlerFields handler, uint64_t number, size_t nbytes, double left, list args) except -1:
        """Run a plain function, and answer."""
        context = PyContext_Copy(self.context)
        PyContext_Enter(context)
        try:
            try:
                result = handler.function(*args)
            finally:
                PyContext_Exit(context)
        except BaseException as error:
            self.runs.raised(number, handler.name, error)
            return 0
        if not self.end.over and self.end.answer(number, result, 0):
            self.end.sent(len(self.serving.calls) + 1)
        else:
            self.runs.returned(number, handler, nbytes, left, result)
            if self.serving.due < <double>self.alarm.at:  # it is awaited, until its deadline
                self.alarm.set(self.serving.due)
        return 0

    cdef int start(self, HandlerFields handler, uint64_t number, size_t nbytes, double left, list args) except -1:
        """Start an async function in a task of its own."""
        cdef ServedFields served = bare_new(self.make)
        cdef SlotsFields slots = handler.slots
        cdef Run run = Run.__new__(Run)
        served.number, served.kind, served.nbytes = number, self.call, nbytes
        served.deadline = <double>self.time() + left
        served.slot = slots
        slots.free -= 1
        self.end.started += 1
        run.server, run.served, run.handler, run.args = self, served, handler, args
        context = PyContext_Copy(self.context)
        if self.serving.enter(served) and self.serving.due < <double>self.alarm.at:
            self.alarm.set(self.serving.due)
        if IS_EAGER and self.loop.get_task_factory() is None:
            work = asyncio.Task(run, loop=self.loop, context=context, eager_start=True)
        else:
            work = self.create_task(run, context=context)
        if run.served is not None:  # it has not ended in its first step
            served.work = work
            if served.stopped and served.started:  # in its first step
                work.cancel()
        return 0


@cython.final
cdef class Run:
    cdef Server server
    cdef ServedFields served
    cdef HandlerFields handler
    cdef list args
    cdef object rest  # what runs: the handler's coroutine, or Python's that answers
    cdef bint answers  # it is Python's

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        return sent(run_send, self, value)

    def throw(self, *error):
        if self.rest is None:
            served, self.served = self.served, None
            if served is not None:
                self.server.runs.unstarted(served)
            raise error[0]
        try:
            return self.rest.throw(*error)
        except StopIteration as ended:
            result = ended.value
        except BaseException as raised:
            self.failed(raised)
            raise StopIteration
        if self.returned(result):
            raise StopIteration
        return self.send(None)

    def close(self):
        if self.rest is not None:
            self.rest.close()

    @property
    def cr_frame(self):
        return None if self.rest is None else self.rest.cr_frame

    @property
    def cr_await(self):
        return self.rest

    cdef bint begin(self) except -1:
        """Call the function, unless the call was stopped; whether there is something to run."""
        cdef ServedFields served = self.served
        served.started = True
        if served.stopped:
            self.server.runs.stopped(served)
            return False
        served.begun = True
        PyContextVar_Set(self.server.served, served)
        args, self.args = self.args, None
        made = self.handler.function(*args)
        self.rest = made if PyCoro_CheckExact(made) else self.server.runs.awaits(made)
        return True

    cdef bint returned(self, result) except -1:
        """Answer with what the handler returned; whether that was all, or `rest` goes on."""
        cdef Server server = self.server
        cdef ServedFields served = self.served
        cdef FrameEnd end = server.end
        cdef SlotsFields slots
        if self.answers:
            self.rest = self.served = None
            return True
        if end.over or end.full or server.serving.calls.get(served.number) is not served or not end.answer(
            served.number, result, 0
        ):
            self.rest, self.answers = server.runs.answer(served, self.handler, result), True
            return False
        del server.serving.calls[served.number]
        server.serving.nbytes -= served.nbytes
        end.sent(len(server.serving.calls) + 1)
        slots, served.slot, served.work = served.slot, None, None  # its task's context holds it
        if slots.line:
            slots.give()
        else:
            slots.free += 1
        self.rest = self.served = None
        if not server.serving.calls:
            server.free()
        return True

    cdef int failed(self, error) except -1:
        """Answer with what the handler raised."""
        served, self.rest, self.served = self.served, None, None
        if self.answers or served is None:
            raise error
        self.server.runs.failed(served, self.handler.name, error)
        return 0


cdef int run_send(PyObject* which, PyObject* value, PyObject** result) except -1:
    cdef Run run = <Run>which
    cdef PyObject* found
    try:
        if run.rest is None and (run.served is None or not run.begin()):
            run.served = None
            Py_INCREF(None)
            result[0] = <PyObject*>None
            return PYGEN_RETURN
        while True:
            found, rest = NULL, run.rest
            if PyIter_Send(rest, <object>value, &found) == PYGEN_NEXT:
                result[0] = found
                return PYGEN_NEXT
            ended = <object>found
            Py_DECREF(ended)
            if run.returned(ended):
                break
            value = <PyObject*>None
    except BaseException as error:
        run.failed(error)
    Py_INCREF(None)
    result[0] = <PyObject*>None
    return PYGEN_RETURN


set_sender(Run, <sender>run_send)
