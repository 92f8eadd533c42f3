# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""The way into a collective on plain arrays: see `starter.pyi`."""

cimport cython
cimport numpy as np
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from aiodist._engine.exchange cimport Exchange, Plan
from aiodist._engine.handle cimport Handle, new_handle
from aiodist._engine.slots cimport SLOTS, Slots, slot_is_free, slot_of

from numpy import may_share_memory

np.import_array()

cdef extern from "numpy/arrayobject.h":
    int PyArray_CHKFLAGS(np.ndarray array, int flags)
    int NPY_ARRAY_CARRAY_RO, NPY_ARRAY_WRITEABLE

cdef extern from *:
    """
    static PyObject *new_array(PyArrayObject *like, int ndim, npy_intp *dims) {
        Py_INCREF(PyArray_DESCR(like)); /* which is stolen */
        return PyArray_Empty(ndim, dims, PyArray_DESCR(like), 0);
    }
    """
    object new_array(np.ndarray like, int ndim, np.npy_intp* dims)

cdef extern from "clock.h":
    double monotonic_seconds()

cdef extern from "frames.h":
    PyObject* frame_above(int depth)
    object code_of(PyObject* frame)
    int instruction_of(PyObject* frame)

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()

cdef enum:
    AXES = 32  # most of an array, in every NumPy
    KINDS = 32
    BARRIER = 6
    MOST_PREPARED = 4096  # calls of a group that are remembered

cdef struct shape:
    int ndim
    np.npy_intp dims[AXES]


cdef inline bint is_plain(np.ndarray array) noexcept:
    """Whether C can read it: contiguous, aligned, of this machine's byte order."""
    return PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY_RO)


cdef inline bint has_shape(np.ndarray array, const shape* wanted) noexcept:
    return np.PyArray_NDIM(array) == wanted.ndim and memcmp(
        np.PyArray_DIMS(array), wanted.dims, wanted.ndim * sizeof(np.npy_intp)
    ) == 0


cdef int note_shape(shape* into, wanted) except -1:
    if len(wanted) > AXES:
        raise ValueError("too many axes")
    into.ndim = <int>len(wanted)
    for index in range(into.ndim):
        into.dims[index] = wanted[index]
    return 0


@cython.final
cdef class Prepared:
    cdef Plan plan
    cdef readonly object call
    cdef object sort, dtype, op, root
    cdef shape lead
    cdef shape others[2]
    cdef int other_count
    cdef bint one_tensor, deals, gives, gets, in_place
    cdef object code, line
    cdef int at

    def __cinit__(self, Plan plan, call, sort, op, root, other_shapes, *, bint one_tensor, bint deals, bint gives,
                  bint gets, bint in_place):
        self.plan, self.call, self.sort, self.dtype = plan, call, sort, call.dtype
        self.op, self.root = op, root
        note_shape(&self.lead, call.shape)
        self.other_count = <int>len(other_shapes)
        if self.other_count > 2:
            raise ValueError("too many shapes")
        for index in range(self.other_count):
            note_shape(&self.others[index], other_shapes[index])
        self.one_tensor, self.deals, self.gives, self.gets = one_tensor, deals, gives, gets
        self.in_place = in_place

    cdef bint fits(self, np.ndarray lead) noexcept:
        return <object>np.PyArray_DESCR(lead) is self.dtype and has_shape(lead, &self.lead)


@cython.final
cdef class Starter:
    cdef object prepare, issuer, numbers, owner, work, op_type, of_torch, of_number, staged, keep
    cdef object line_of, runs, seconds
    cdef dict blocks
    cdef Slots slots  # None: of a group of one
    cdef unsigned long thread
    cdef dict known
    cdef list last, recent
    cdef uint64_t recent_seq[SLOTS]
    cdef bint closed

    def __cinit__(self, prepare, issuer, numbers, owner, Slots slots, work, op_type, of_torch, of_number, staged,
                  seconds):
        self.prepare, self.issuer, self.numbers, self.owner = prepare, issuer, numbers, owner
        self.slots, self.work, self.op_type, self.of_torch = slots, work, op_type, of_torch
        self.of_number, self.staged = of_number, staged
        self.keep, self.line_of = issuer.track.keep, issuer.track.line_of
        self.thread, self.runs, self.blocks, self.seconds = issuer.thread, issuer.running, issuer.blocks, seconds
        self.known = {}
        self.last = [None] * KINDS
        self.recent = [None] * SLOTS

    # ── the call ──

    def start(self, int kind, lead, other, bint held, op=0, root=-1, timeout=None, int depth=1):
        cdef Prepared call
        cdef np.ndarray array, second
        if self.closed or PyThread_get_thread_ident() != self.thread or self.blocks or not self.runs():
            return None
        limit = None if timeout is None else self.limit_of(timeout)
        if kind == BARRIER:
            call = self.last[BARRIER]
            if call is None:
                call = self.last[BARRIER] = self.prepare(BARRIER, None, (), 0, -1)
            return self.begin(call, None, None, None, held, limit, depth)
        if type(lead) is not np.ndarray:
            return self.start_foreign(kind, lead, other, held, op, root, limit, depth)
        array = lead
        call = self.find(kind, array, op, root)
        if call is None:
            return None
        if other is None:
            second = None
        elif type(other) is not np.ndarray or not self.is_other(call, array, other):
            return None
        else:
            second = other
        if is_plain(array) and (second is None or is_plain(second)):
            return self.arrange(call, array, second, lead, other, held, limit, depth)
        return self.start_staged(call, array, second, held, limit, depth)

    cdef start_staged(self, Prepared call, np.ndarray lead, np.ndarray other, bint held, limit, int depth):
        """Start on copies of arrays that are strided, or not aligned: what is written is copied back at the end."""
        cdef np.ndarray array = lead, second = other
        cdef bint written = call.deals or call.gets and (call.one_tensor or call.in_place and other is None)
        back = None
        if not is_plain(lead):
            made = self.staged(lead, written)
            if made is None:
                return None
            array, back = made
        if other is not None and not is_plain(other):
            made = self.staged(other, not call.deals)
            if made is None:
                return None
            second, other_back = made
            back = back if back is not None else other_back
        return self.arrange(call, array, second, lead, other, held, limit, depth, back)

    cdef limit_of(self, timeout):
        """Seconds of a timeout."""
        cdef double limit
        if type(timeout) is float or type(timeout) is int and 0 < timeout < 1 << 31:
            limit = timeout
            if limit > 0:
                return limit
        return self.seconds(timeout)

    cdef start_foreign(self, int kind, lead, other, bint held, op, root, limit, int depth):
        """Start on the memory of torch's tensors, where no tensor has to be made for the result."""
        cdef Prepared call
        cdef np.ndarray second = None
        array = self.of_torch(lead)
        if array is None:
            return None if other is not None else self.start_number(kind, lead, held, op, root, limit, depth)
        call = self.find(kind, array, op, root)
        if call is None or not is_plain(array):
            return None
        if other is not None:
            made = self.of_torch(other)
            if made is None or not self.is_other(call, array, made) or not is_plain(made):
                return None
            second = made
        elif call.gets and not (call.in_place or call.one_tensor or call.deals):
            return None
        return self.arrange(call, array, second, lead, other, held, limit, depth)

    cdef start_number(self, int kind, lead, bint held, op, root, limit, int depth):
        """Start on a number: the result is one, too, or a list."""
        cdef Prepared call
        found = self.of_number(lead)
        if found is None:
            return None
        array, convert = found
        call = self.find(kind, array, op, root)
        if call is None or call.deals:
            return None
        if call.one_tensor and not call.gets:
            return self.arrange(call, array, None, lead, None, held, limit, depth, None)
        return self.arrange(call, array, None, array, None, held, limit, depth, convert)

    cdef Prepared find(self, int kind, np.ndarray lead, op, root):
        """The prepared call of a call like this one; None: it is no case for this."""
        cdef Prepared call
        if not 0 <= kind < KINDS:
            return None
        call = self.last[kind]
        if call is not None and call.op is op and call.root is root and call.fits(lead):
            return call
        # Before the op is asked anything: torch's are equal to numbers, too, and True to 1.
        if type(op) is not self.op_type and not (type(op) is int and op == 0) or type(root) is not int:
            return None
        shape = (<object>lead).shape
        key = (kind, op, root, lead.dtype, shape)
        found = self.known.get(key, self)
        if found is self:
            if len(self.known) >= MOST_PREPARED:
                self.known.clear()
            found = self.known[key] = self.prepare(kind, lead.dtype, shape, op, root)
        call = found
        if call is not None:
            call.op, call.root, call.dtype = op, root, <object>np.PyArray_DESCR(lead)
            self.last[kind] = call
        return call

    cdef bint is_other(self, Prepared call, np.ndarray lead, np.ndarray other) except -1:
        """Whether an array can be the second one: its parts stacked or joined, and apart from the first."""
        cdef const char* a = <const char*>np.PyArray_DATA(lead)
        cdef const char* b = <const char*>np.PyArray_DATA(other)
        cdef int index
        if other is lead:
            return False
        if np.PyArray_DESCR(other) != np.PyArray_DESCR(lead) and other.dtype != lead.dtype:
            return False
        if is_plain(lead) and is_plain(other):
            if a < b + np.PyArray_NBYTES(other) and b < a + np.PyArray_NBYTES(lead):
                return False
        elif may_share_memory(lead, other):
            return False
        for index in range(call.other_count):
            if has_shape(other, &call.others[index]):
                return True
        return False

    cdef arrange(self, Prepared call, np.ndarray array, np.ndarray second, lead, other, bint held, limit, int depth,
                 convert=None):
        """Find what is given, what is got, and the result; then begin."""
        if call.one_tensor:
            if second is not None or call.gets and not PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE):
                return None
            return self.begin(call, array if call.gives else None, array if call.gets else None, lead, held, limit, depth, convert)
        if call.deals:
            if call.gives != (second is not None) or not PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE):
                return None
            return self.begin(call, second, array, lead, held, limit, depth, convert)
        if not call.gets:
            return None if second is not None else self.begin(call, array, None, None, held, limit, depth)
        if second is None:
            if call.in_place:
                if not PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE):
                    return None
                return self.begin(call, array, array, lead, held, limit, depth, convert)
            second = new_array(array, call.others[0].ndim, call.others[0].dims)
            other = second
        elif not PyArray_CHKFLAGS(second, NPY_ARRAY_WRITEABLE):
            return None
        return self.begin(call, array, second, other, held, limit, depth, convert)

    # ── the operation ──

    cdef begin(self, Prepared call, np.ndarray send, np.ndarray recv, result, bint held, limit, int depth,
               convert=None):
        cdef Slots slots = self.slots
        cdef Exchange exchange = None
        cdef Handle work
        cdef uint64_t seq = self.numbers.issued
        if slots is not None:
            if not slots.made:
                slots.made = slots.complete or self.owner.board.complete()
            if not slots.is_open() or (seq >= SLOTS and not slots.made) or not slot_is_free(&slots.c, seq):
                return None
            exchange = call.plan.exchange(seq)
            exchange.lay_plain(send, recv)
            if exchange.needs:
                staging = self.owner.staging(exchange)
                if not staging:
                    exchange.drop()
                    return None
                self.numbers.issued = seq + 1
                exchange.publish(staging)
            else:
                self.numbers.issued = seq + 1
                exchange.publish()
        else:
            self.numbers.issued = seq + 1
            if send is not None and recv is not None and recv is not send:
                memcpy(np.PyArray_DATA(recv), np.PyArray_DATA(send), np.PyArray_NBYTES(recv))
        self.recent[slot_of(seq)], self.recent_seq[slot_of(seq)] = call, seq
        noted = self.note(call, seq, depth)  # peers have it: what follows costs no time while they are awaited
        work = new_handle(self.work, self.issuer, call.call, held, exchange, result, seq, noted)
        work._limit = limit
        if exchange is None:
            work.finish(result if convert is None else convert(result))
            return work
        work._convert = convert
        exchange.work = work
        slots.put(seq, exchange)
        if not slots.end_of_turn.due or not slots.watched:
            self.owner.watch()
        return work

    cdef note(self, Prepared call, uint64_t seq, int depth):
        """Write down that the operation was issued, and by which line."""
        cdef PyObject* frame = frame_above(depth)
        cdef int at
        if frame != NULL:
            code, at = code_of(frame), instruction_of(frame)
            if code is not call.code or at != call.at:
                call.line = self.line_of(call.sort, <object>frame)
                # A line of a library is looked for each time: what called it may be another.
                call.code, call.at = code if call.sort.code is code and call.sort.at == at else None, at
            Py_DECREF(<object>frame)
        noted = (call.sort, seq, call.line, monotonic_seconds())
        self.keep(noted)
        return noted

    # ── of the group ──

    def note_all(self):
        if self.slots is not None:
            self.owner.note_all()

    def call(self, uint64_t seq):
        cdef Prepared call = self.recent[slot_of(seq)]
        if call is None or self.recent_seq[slot_of(seq)] != seq:
            return None
        return call.call.numbered(seq)

    def stop(self):
        self.closed = True

    def close(self):
        self.closed = True
        self.recent = [None] * SLOTS
        self.forget()

    def forget(self):
        self.known.clear()
        self.last = [None] * KINDS
