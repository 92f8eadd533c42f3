# cython: auto_pickle=False, autotestdict=False
"""What a Work does in the usual case: see `handle.pyi`."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()
    int PyIter_Send(object iterator, object value, PyObject** result) except -1

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

cdef extern from "clock.h":
    double monotonic_seconds()

cdef extern from "frames.h":
    PyObject* frame_above(int depth)
    object code_of(PyObject* frame)
    int instruction_of(PyObject* frame)

cdef extern from "handle.h":
    ctypedef void* sender
    void set_sender(object kind, sender send)

FINGERPRINT = AIODIST_FINGERPRINT.decode()

cdef enum:
    PENDING = 0
    DONE = 1

cdef double PULSE = 0.001  # as `backends/work.py` has it


cdef class TurnClock:
    def __cinit__(self):
        self.began_at = -1

    @property
    def since(self):
        return None if self.began_at < 0 else self.began_at

    @since.setter
    def since(self, value):
        if value is None:
            self.began_at, self.polled = -1, 0
        else:
            self.began_at = value

    cdef double start(self, double limit) except? -1:
        self.poll_began = self._begin() if self.began_at < 0 else monotonic_seconds()
        return self.poll_began + limit - self.polled

    cdef int stop(self) except -1:
        self.polled += monotonic_seconds() - self.poll_began
        return 0

    def start_polling(self, double limit):
        return self.start(limit)

    def stop_polling(self):
        self.stop()


cdef class Issuer:
    pass


cdef class Site:
    cdef bint find_line(self, object line_of, int depth) except -1:
        """Find the line of the program that has issued an operation → whether it is another than the last one."""
        cdef PyObject* frame = frame_above(depth)
        cdef int at
        cdef bint differs = False
        if frame != NULL:
            code, at = code_of(frame), instruction_of(frame)
            differs = code is not self.code or at != self.at
            if differs:
                self.line = line_of(self.sort, <object>frame)
                # A line of a library is looked for each time: what called it may be another.
                self.code, self.at = code if self.sort.code is code and self.sort.at == at else None, at
            Py_DECREF(<object>frame)
        return differs


cdef class Driver:
    cdef int bring_on(self) except -1:
        """Try to end the operation, for no longer than this turn of the loop may take."""
        return 0


cdef class Handle:
    def __init__(self, issuer, call, bint held, driver=None, result=None, seq=None, noted=None):
        self._issuer, self._call, self._driver, self._result = issuer, call, driver, result
        self._seq, self._noted = seq, noted
        self._unheld, self._awaited = not held, held

    def __await__(self):
        cdef Awaiting made = Awaiting.__new__(Awaiting)
        made.work = self
        return made

    cdef bint is_done_at_once(self) except -1:
        """Whether the await ends at once, and well; else nothing has happened, and `_await_on` does all of it."""
        cdef bint held = self._awaited
        cdef Driver driver
        cdef Issuer issuer
        if self._held_back or not isinstance(self._issuer, Issuer):
            return False
        issuer = self._issuer
        self._awaited = True
        if self._state == PENDING and isinstance(self._driver, Driver):
            if PyThread_get_thread_ident() == issuer.thread and issuer.running():
                driver = self._driver  # it is held here: the operation may end, or break its group, meanwhile
                driver.bring_on()
        if self._state == DONE and issuer.turn is not None and issuer.turn.began_at >= 0:
            if monotonic_seconds() - issuer.turn.began_at <= PULSE:
                self._take_back = None
                self._unheld = self._unheld and not held
                return True
        self._awaited = held
        return False

    def _finish(self, result):
        self.finish(result)

    cdef int finish(self, object result) except -1:
        if self._state == PENDING:
            self._result = result
            self._state = DONE
            self._driver = None  # users keep handles: they must not keep the group's memory
            if self._waiters is not None or self._callbacks is not None:
                self._wake()
        return 0

    def __del__(self):
        if not (self._awaited or self._followed) or self._untold:
            self._is_dropped()


@cython.final
@cython.freelist(16)
cdef class Awaiting:
    """The iterator of one await."""

    cdef Handle work
    cdef object rest  # what goes on where the result is not there at once

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        return sent(send_to, self, value)

    def throw(self, *error):
        return self.begun().throw(*error)

    def close(self):
        self.begun().close()

    cdef begun(self):
        if self.rest is None:
            self.rest = of_work(self)._await_on()
        return self.rest

    @property
    def gi_frame(self):
        return None

    @property
    def gi_yieldfrom(self):
        return self.rest


cdef inline Handle of_work(Awaiting awaiting):
    if awaiting.work is None:
        raise TypeError("only `await` makes this")
    return awaiting.work


cdef int send_to(PyObject* awaiting, PyObject* value, PyObject** result) except -1:
    cdef Awaiting one = <Awaiting>awaiting
    cdef Handle work
    if one.rest is None:
        work = of_work(one)
        if work.is_done_at_once():
            Py_INCREF(work._result)
            result[0] = <PyObject*>work._result
            return PYGEN_RETURN
        one.rest = work._await_on()
    return PyIter_Send(one.rest, <object>value, result)


set_sender(Awaiting, <sender>send_to)
