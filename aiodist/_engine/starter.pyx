# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""The way into a collective on plain arrays: see `starter.pyi`."""

cimport cython
cimport numpy as np
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from aiodist._engine.exchange cimport Exchange, Plan
from aiodist._engine.handle cimport Handle, Site, new_handle
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

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()

cdef enum:
    AXES = 32  # most of an array, in every NumPy
    KINDS = 32
    BARRIER = 6
    BITS = 10
    MOST_PREPARED = 1 << BITS  # shapes of a group's calls that are remembered; and kinds of calls
    SPANS = 16  # of sizes, of one kind of call, that are told apart

cdef uint64_t SCATTER = 0x9E3779B97F4A7C15  # a factor that spreads numbers over all bits

cdef struct shape:
    int ndim
    np.npy_intp dims[AXES]


cdef inline bint is_plain(np.ndarray array) noexcept:
    """Whether C can read it: contiguous, aligned, of this machine's byte order."""
    return PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY_RO)


cdef inline bint has_shape(np.ndarray array, const shape* wanted) noexcept:
    return np.PyArray_NDIM(array) == wanted.ndim and (wanted.ndim == 0 or memcmp(
        np.PyArray_DIMS(array), wanted.dims, wanted.ndim * sizeof(np.npy_intp)
    ) == 0)


@cython.final
cdef class Prepared:
    cdef readonly object call
    cdef object op, root, dtype
    cdef np.npy_intp size
    cdef bint cut, splits, stacks, one_tensor, deals, gives, gets, in_place
    cdef list plans  # of spans of sizes; False: no case for this; None: of a group of one
    cdef size_t least[SPANS]
    cdef size_t most[SPANS]
    cdef object code, line  # where one was issued last
    cdef int at

    def __cinit__(self, call, op, root, np.npy_intp size, *, bint cut, bint splits, bint stacks, bint one_tensor,
                  bint deals, bint gives, bint gets, bint in_place):
        self.call, self.op, self.root, self.dtype, self.size = call, op, root, call.dtype, size
        self.cut, self.splits, self.stacks, self.one_tensor = cut, splits, stacks, one_tensor
        self.deals, self.gives, self.gets, self.in_place = deals, gives, gets, in_place
        self.plans = []

    cdef bint is_for(self, np.ndarray lead, op, root) noexcept:
        return self.op is op and self.root is root and self.dtype is <object>np.PyArray_DESCR(lead)

    cdef Py_ssize_t span_of(self, size_t count) noexcept:
        """The index of the span that has a number of elements; -1: none that is known."""
        cdef Py_ssize_t index
        for index in range(len(self.plans)):
            if self.least[index] <= count <= self.most[index]:
                return index
        return -1

    cdef Py_ssize_t add_span(self, plan, counts) except -1:
        """Note the plan of all numbers of elements of a range."""
        if len(self.plans) == SPANS:
            self.plans.clear()
        self.least[len(self.plans)], self.most[len(self.plans)] = counts.start, counts.stop - 1
        self.plans.append(plan)
        return len(self.plans) - 1

    cdef bint other_shape(self, const shape* lead, int form, shape* other) noexcept:
        """Find a shape that the second array may have, 0 or 1, and a new one has the first; False: there is none."""
        cdef int skipped = 0, added = 0
        if self.splits:  # parts are joined along the first axis, and one of one row may have none
            if form and (lead.dims[0] != self.size or lead.ndim == 1):
                return False
            skipped = form
        elif self.stacks:
            if form and not lead.ndim:
                return False
            added = not form
        elif form:
            return False
        other.ndim = lead.ndim - skipped + added
        memcpy(other.dims + added, lead.dims + skipped, (lead.ndim - skipped) * sizeof(np.npy_intp))
        if self.splits and not form:
            other.dims[0] = lead.dims[0] // self.size
        elif self.stacks:
            other.dims[0] = self.size if added else self.size * lead.dims[0]
        return True


@cython.final
cdef class Sized(Site):
    """A prepared call on arrays of one shape."""

    cdef Prepared of
    cdef Plan plan
    cdef object call
    cdef shape lead


@cython.final
cdef class Starter:
    cdef object prepare, issuer, numbers, owner, work, op_type, of_torch, of_number, staged, keep
    cdef object line_of, new_sort, span, runs, seconds
    cdef dict blocks
    cdef Slots slots  # None: of a group of one
    cdef unsigned long thread
    cdef dict prepared
    cdef list last, known, recent
    cdef readonly Py_ssize_t count
    cdef uint64_t recent_seq[SLOTS]
    cdef bint closed

    def __cinit__(self, prepare, span, issuer, numbers, owner, Slots slots, work, op_type, of_torch, of_number,
                  staged, seconds):
        self.span, self.new_sort = span, issuer.track.new_sort
        self.prepare, self.issuer, self.numbers, self.owner = prepare, issuer, numbers, owner
        self.slots, self.work, self.op_type, self.of_torch = slots, work, op_type, of_torch
        self.of_number, self.staged = of_number, staged
        self.keep, self.line_of = issuer.track.keep, issuer.track.line_of
        self.thread, self.runs, self.blocks, self.seconds = issuer.thread, issuer.running, issuer.blocks, seconds
        self.let_go()

    # ── the call ──

    def start(self, int kind, lead, other, bint held, op=0, root=-1, timeout=None, int depth=1, convert=None):
        cdef Sized call
        cdef np.ndarray array, second
        if self.closed or PyThread_get_thread_ident() != self.thread or self.blocks or not self.runs():
            return None
        limit = None if timeout is None else self.limit_of(timeout)
        if kind == BARRIER:
            call = self.last[BARRIER]
            if call is None:
                prepared = self.prepare(BARRIER, None, 0, -1)
                call = self.last[BARRIER] = self.sized(prepared, prepared.call.shape)
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
            return self.arrange(call, array, second, lead, other, held, limit, depth, convert)
        return self.start_staged(call, array, second, held, limit, depth)

    cdef start_staged(self, Sized call, np.ndarray lead, np.ndarray other, bint held, limit, int depth):
        """Start on copies of arrays that are strided, or not aligned: what is written is copied back at the end."""
        cdef np.ndarray array = lead, second = other
        cdef Prepared of = call.of
        cdef bint written = of.deals or of.gets and (of.one_tensor or of.in_place and other is None)
        back = None
        if not is_plain(lead):
            made = self.staged(lead, written)
            if made is None:
                return None
            array, back = made
        if other is not None and not is_plain(other):
            made = self.staged(other, not of.deals)
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
        cdef Sized call
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
        elif call.of.gets and not (call.of.in_place or call.of.one_tensor or call.of.deals):
            return None
        return self.arrange(call, array, second, lead, other, held, limit, depth)

    cdef start_number(self, int kind, lead, bint held, op, root, limit, int depth):
        """Start on a number: the result is one, too, or a list."""
        cdef Sized call
        found = self.of_number(lead)
        if found is None:
            return None
        array, convert = found
        call = self.find(kind, array, op, root)
        if call is None or call.of.deals:
            return None
        if call.of.one_tensor and not call.of.gets:
            return self.arrange(call, array, None, lead, None, held, limit, depth, None)
        return self.arrange(call, array, None, array, None, held, limit, depth, convert)

    cdef Sized find(self, int kind, np.ndarray lead, op, root):
        """The prepared call of a call like this one; None: it is no case for this."""
        cdef Prepared of
        cdef Sized call
        if not 0 <= kind < KINDS:
            return None
        call = self.last[kind]
        if call is not None and call.of.is_for(lead, op, root):
            of = call.of
            if has_shape(lead, &call.lead):
                return call
        else:
            of = self.find_kind(kind, lead, op, root)
            if of is None:
                return None
        call = self.find_shape(of, lead)
        if call is not None:
            self.last[kind] = call
        return call

    cdef Prepared find_kind(self, int kind, np.ndarray lead, op, root):
        """What calls of a kind, dtype, op and root share; None: they are no case for this."""
        cdef Prepared of
        # Before the op is asked anything: torch's are equal to numbers, too, and True to 1.
        if type(op) is not self.op_type and not (type(op) is int and op == 0) or type(root) is not int:
            return None
        key = (kind, op, root, lead.dtype)
        found = self.prepared.get(key, self)
        if found is self:
            if len(self.prepared) >= MOST_PREPARED:
                self.prepared.clear()
            found = self.prepared[key] = self.prepare(kind, lead.dtype, op, root)
        of = found
        if of is not None:
            of.op, of.root, of.dtype = op, root, <object>np.PyArray_DESCR(lead)
        return of

    cdef Sized find_shape(self, Prepared of, np.ndarray lead):
        """A prepared call on arrays of a shape: one of two places remembers it, or it is made. None: no case."""
        cdef int ndim = np.PyArray_NDIM(lead), index
        cdef const np.npy_intp* dims = np.PyArray_DIMS(lead)
        cdef uint64_t place = <uint64_t><void*>of
        cdef Sized call
        if ndim >= AXES or (of.cut and (ndim == 0 or dims[0] % of.size)):
            return None
        for index in range(ndim):
            if dims[index] == 0:
                return None
            place = (place ^ <uint64_t>dims[index]) * SCATTER
        place = place * SCATTER >> 64 - BITS
        for index in range(2):
            call = self.known[place ^ index]
            if call is not None and call.of is of and has_shape(lead, &call.lead):
                return call
        call = self.sized(of, (<object>lead).shape)
        if call is not None:
            if self.known[place] is None:
                self.count += 1
            else:
                self.count += self.known[place ^ 1] is None
                self.known[place ^ 1] = self.known[place]
            self.known[place] = call
        return call

    cdef Sized sized(self, Prepared of, tuple shape):
        """A new prepared call on arrays of a shape."""
        cdef Sized made = Sized.__new__(Sized)
        cdef size_t count = 1
        cdef Py_ssize_t index
        cdef Plan like
        made.lead.ndim = <int>len(shape)
        for index in range(made.lead.ndim):
            made.lead.dims[index] = shape[index]
            count *= <size_t>made.lead.dims[index]
        index = of.span_of(count)
        if index < 0:
            plan, counts = self.span(of.call.shaped(shape))
            index = of.add_span(plan, counts)
        plan = of.plans[index]
        if plan is False:
            return None
        made.of, made.call = of, of.call.shaped(shape)
        made.sort = self.new_sort(made.call)
        if plan is not None:
            like = plan
            made.plan = like if made.call.detail else like.like(made.call, count, made.lead.ndim, made.lead.dims)
        made.code, made.at, made.line = of.code, of.at, of.line
        return made

    cdef bint is_other(self, Sized call, np.ndarray lead, np.ndarray other) except -1:
        """Whether an array can be the second one: its parts stacked or joined, and apart from the first."""
        cdef const char* a = <const char*>np.PyArray_DATA(lead)
        cdef const char* b = <const char*>np.PyArray_DATA(other)
        cdef int form
        cdef shape wanted
        if other is lead:
            return False
        if np.PyArray_DESCR(other) != np.PyArray_DESCR(lead) and other.dtype != lead.dtype:
            return False
        if is_plain(lead) and is_plain(other):
            if a < b + np.PyArray_NBYTES(other) and b < a + np.PyArray_NBYTES(lead):
                return False
        elif may_share_memory(lead, other):
            return False
        for form in range(2):
            if call.of.other_shape(&call.lead, form, &wanted) and has_shape(other, &wanted):
                return True
        return False

    cdef arrange(self, Sized call, np.ndarray array, np.ndarray second, lead, other, bint held, limit, int depth,
                 convert=None):
        """Find what is given, what is got, and the result; then begin."""
        cdef Prepared of = call.of
        cdef shape wanted
        if of.one_tensor:
            if second is not None or of.gets and not PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE):
                return None
            return self.begin(call, array if of.gives else None, array if of.gets else None, lead, held, limit, depth, convert)
        if of.deals:
            if of.gives != (second is not None) or not PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE):
                return None
            return self.begin(call, second, array, lead, held, limit, depth, convert)
        if not of.gets:
            return None if second is not None else self.begin(call, array, None, None, held, limit, depth)
        if second is None:
            if of.in_place:
                if not PyArray_CHKFLAGS(array, NPY_ARRAY_WRITEABLE):
                    return None
                return self.begin(call, array, array, lead, held, limit, depth, convert)
            of.other_shape(&call.lead, 0, &wanted)
            second = new_array(array, wanted.ndim, wanted.dims)
            other = second
        elif not PyArray_CHKFLAGS(second, NPY_ARRAY_WRITEABLE):
            return None
        return self.begin(call, array, second, other, held, limit, depth, convert)

    # ── the operation ──

    cdef begin(self, Sized call, np.ndarray send, np.ndarray recv, result, bint held, limit, int depth,
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

    cdef note(self, Sized call, uint64_t seq, int depth):
        """Write down that the operation was issued, and by which line."""
        if call.find_line(self.line_of, depth):
            call.of.code, call.of.at, call.of.line = call.code, call.at, call.line
        noted = (call.sort, seq, call.line, monotonic_seconds())
        self.keep(noted)
        return noted

    # ── of the group ──

    def note_all(self):
        if self.slots is not None:
            self.owner.note_all()

    def call(self, uint64_t seq):
        cdef Sized call = self.recent[slot_of(seq)]
        if call is None or self.recent_seq[slot_of(seq)] != seq:
            return None
        return call.call.numbered(seq)

    def stop(self):
        self.closed = True

    def close(self):
        self.closed = True
        self.let_go()

    cdef int let_go(self) except -1:
        """Forget all that is prepared."""
        self.prepared, self.known, self.count = {}, [None] * MOST_PREPARED, 0
        self.last, self.recent = [None] * KINDS, [None] * SLOTS
        return 0
