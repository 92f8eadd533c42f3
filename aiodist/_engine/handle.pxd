# The fields of a handle, of what a group's handles share, and of the loop's turn, for the compiled callers.

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

cdef extern from "Python.h":
    int PYGEN_RETURN

ctypedef int (*resume)(PyObject* which, PyObject* value, PyObject** result) except -1

cdef inline sent(resume send, object which, object value):
    """What `send` of an awaitable gives, or raises at its end, by C's way to resume it."""
    cdef PyObject* found = NULL
    cdef bint over = send(<PyObject*>which, <PyObject*>value, &found) == PYGEN_RETURN
    result = <object>found
    Py_DECREF(result)  # the reference that came
    if over:
        raise StopIteration(result)
    return result

cdef class TurnClock:
    cdef double began_at, poll_began, polled  # of the turn (negative: it has not begun), of a poll; seconds of polling
    cdef double start(self, double limit) except? -1
    cdef int stop(self) except -1

cdef class Issuer:
    cdef public unsigned long thread
    cdef public object running
    cdef public TurnClock turn

cdef class Site:
    cdef object sort, code, line
    cdef int at
    cdef bint find_line(self, object line_of, int depth) except -1

cdef class Driver:
    cdef int bring_on(self) except -1

cdef class Handle:
    cdef public object _issuer, _call, _seq, _noted, _driver, _result, _error, _waiters, _callbacks, _completion
    cdef public object _take_back, _limit, _steps
    cdef object _convert  # makes what an await gives of what an exchange has written
    cdef public int _state
    cdef public bint _held_back, _unheld, _awaited, _followed, _untold
    cdef bint is_done_at_once(self) except -1
    cdef int finish(self, object result) except -1

cdef extern from "handle.h":
    object bare_new(object kind)

cdef inline Handle new_handle(object kind, object issuer, object call, bint held, object driver, object result,
                              object seq, object noted):
    """A handle of a class; its `__init__` is not called."""
    cdef Handle made = bare_new(kind)
    made._issuer, made._call, made._driver, made._result = issuer, call, driver, result
    made._seq, made._noted = seq, noted
    made._unheld, made._awaited = not held, held
    return made
