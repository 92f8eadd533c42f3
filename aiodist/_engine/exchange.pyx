# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""Running operations between ranks of one host: see `exchange.pyi`."""

cimport cython
cimport numpy as np
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport SIZE_MAX
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from aiodist._engine.handle cimport Driver, Handle
from aiodist._engine.slots cimport (
    PAYLOAD, SIGNATURE_BYTES, EndOfTurn, Slots, all_made, first_unseen, is_seen, look_back, note_finished, own_slot,
    relax, slot_of,
)

np.import_array()

cdef extern from "exchange.h" nogil:
    combine_loop combine_loop_for(int type, int op)
    finish_loop finish_loop_for(int type, int op)
    size_t size_of(int type)
    void (*before_read)() noexcept nogil
    int exchange_advance(exchange* x)
    void exchange_begin(exchange* x, const unsigned char* signature)
    int exchange_differs(exchange* x)
    bint has_ended(const exchange* x)
    void end_exchange(exchange* x)

cdef extern from "layout.h" nogil:
    void lay_parts(plan* p, size_t count)
    void lay_blocks(plan* p)
    void sign_shape(unsigned char* signature, int ndim, const np.npy_intp* dims)
    uint64_t digest_of(const unsigned char* signature)

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "numpy/arrayobject.h":
    int PyArray_IS_C_CONTIGUOUS(np.ndarray array)
    int PyArray_ISWRITEABLE(np.ndarray array)

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

cdef extern from "clock.h" nogil:
    double monotonic_seconds()
    bint flag_is_set(const int* flag)
    void set_flag(int* flag, int value)

FINGERPRINT = AIODIST_FINGERPRINT.decode()
KINDS = {"meet": MEET, "each": EACH, "share": SHARE, "reduce": REDUCE}

cdef list NOTHING = []

cdef enum:
    READ_ONLY = 100  # an outcome beside those of exchange.h: an array that is written must not be any more

cdef enum:
    FIRST_LOOKS = 32  # of an await before it asks for the time: what peers do alike they do at the same time
    RELEASED_FROM = 32 * 1024  # bytes: other threads may run Python code meanwhile
    POOL = 256  # exchanges of a group that are kept for their next use

cdef size_t MOST_BYTES = SIZE_MAX // 4  # of the parts of all members


@cython.final
cdef class Plan:
    def __init__(self, Slots slots not None, owner, call, path, bytes signature not None, int kind, gives, gets,
                 size_t count, sizes=None, *, bint in_thread=False, bint in_slot=False, bint cut=False,
                 bint alike=True, bint sorts=False, bint collects=True, int dtype=1, int op=0, size_t block=0,
                 size_t larger=0, size_t depth=0, size_t lanes=1):
        cdef int size = slots.c.size, index
        cdef plan* c = &self.c
        cdef size_t itemsize = size_of(dtype)
        if self.slots is not None:
            raise ValueError("it is made")
        if not (len(gives) == len(gets) == size and len(signature) == SIGNATURE_BYTES and itemsize):
            raise ValueError("a plan for another group")
        if count > MOST_BYTES // <size_t>size // itemsize:
            raise OverflowError(f"{count} elements of each of {size} ranks")
        if kind == SHARE and lanes < <size_t>(1 if alike else size - 1):
            raise ValueError(f"no room in blocks of {lanes} parts")
        self.owner, self.call, self.path = owner, call, path
        self.signature, self.in_thread = signature, in_thread
        c.all, c.kind, c.in_thread, c.in_slot = &slots.c, kind, in_thread, in_slot
        c.cut, c.alike, c.sorts, c.collects = cut, alike, sorts, collects
        c.itemsize = itemsize
        c.alignment = 8 if itemsize == 16 else 4 if call.dtype.kind == "c" else itemsize
        c.most, c.most_larger, c.most_depth, c.lanes = block, larger, depth, lanes
        if op:
            c.combine, c.finish = combine_loop_for(dtype, op), finish_loop_for(dtype, op)
            if c.combine == NULL:
                raise ValueError(f"operation {op} has no meaning for {call.dtype}")
        self.make_room()
        givers = 0
        for index in range(size):
            c.gives[index], c.gets[index] = bool(gives[index]), bool(gets[index])
            givers += bool(gives[index]) and index != slots.c.rank
        self.sees_all = kind != SHARE or givers == size - 1
        if sizes is None:
            lay_parts(c, count)
        elif len(sizes) != size:
            raise ValueError("a plan for another group")
        else:
            for index in range(size):
                c.sizes[index] = sizes[index]
                c.starts[index] = 0 if index == 0 else c.starts[index - 1] + c.sizes[index - 1]
        self.lay()
        if in_slot and (c.longest if alike or kind == EACH else c.total) * itemsize > PAYLOAD:
            raise ValueError("more than a slot has room for")
        self.slots = slots  # without them nothing begins

    def __dealloc__(self):
        free(self.c.sizes)

    cdef int make_room(self) except -1:
        """Take memory for what is said of each member."""
        cdef size_t size = self.c.all.size
        free(self.c.sizes)
        self.c.sizes = <size_t*>calloc(size, 2 * sizeof(size_t) + 2)
        if self.c.sizes == NULL:
            raise MemoryError
        self.c.starts = self.c.sizes + size
        self.c.gives = <unsigned char*>(self.c.starts + size)
        self.c.gets = self.c.gives + size
        return 0

    cdef void lay(self) noexcept:
        """Compute what follows from the parts and the signature."""
        lay_blocks(&self.c)
        self.is_long = self.in_thread or self.c.total * self.c.itemsize >= RELEASED_FROM
        self.digest = digest_of(self.signature)

    cdef Plan like(self, call, size_t count, int ndim, np.npy_intp* dims):
        """The plan of the same call on arrays of another shape that takes the same path, with parts that are
        alike."""
        cdef Plan made = Plan.__new__(Plan)
        cdef size_t size = self.c.all.size
        made.c = self.c
        made.c.sizes = NULL
        made.make_room()
        memcpy(made.c.gives, self.c.gives, 2 * size)
        made.slots, made.owner, made.call, made.path = self.slots, self.owner, call, self.path
        made.in_thread, made.sees_all = self.in_thread, self.sees_all
        made.signature = PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.signature), SIGNATURE_BYTES)
        sign_shape(<unsigned char*>PyBytes_AS_STRING(made.signature), ndim, dims)
        lay_parts(&made.c, count)
        made.lay()
        return made

    @property
    def layout(self):
        cdef const plan* c = &self.c
        cdef int size = 0 if self.slots is None else c.all.size
        return {
            "sizes": [c.sizes[index] for index in range(size)],
            "starts": [c.starts[index] for index in range(size)],
            "gives": [bool(c.gives[index]) for index in range(size)],
            "gets": [bool(c.gets[index]) for index in range(size)],
            "kind": c.kind, "in_slot": bool(c.in_slot), "longest": c.longest, "total": c.total,
            "block": c.block, "count": c.count, "larger": c.larger, "fewer": c.fewer,
            "depth": c.depth, "lane": c.lane, "lanes": c.lanes,
        }

    cdef Exchange exchange(self, uint64_t seq):
        cdef Exchange made
        if self.slots.pool:
            made = self.slots.pool.pop()
        else:
            made = Exchange.__new__(Exchange, self)
        made.plan = self
        made.c.of = &self.c
        made.c.seq = seq
        made.c.code = self.digest << 16 | (seq + 1) & self.slots.c.low
        made.c.own = own_slot(&self.slots.c, seq)
        made.c.stage = ARRIVE
        made.c.ended = False
        made.seen = made.busy = made.idle = False
        made.signature = self.signature
        return made

    def begin(self, uint64_t seq, list send not None, list recv not None, made=None, bytes signature=None):
        cdef Exchange one
        if self.slots is None or not self.slots.is_open():
            raise ValueError("the segment is gone")
        one = self.exchange(seq)
        one.send, one.recv, one.made = send, recv, made
        if signature is not None:
            if len(signature) != SIGNATURE_BYTES:
                raise ValueError("no signature")
            one.signature = signature
            one.c.code = digest_of(signature) << 16 | (seq + 1) & self.slots.c.low
        one.lay_out()
        return one


@cython.final
cdef class Exchange(Driver):
    def __cinit__(self, Plan plan not None):
        cdef int size = plan.slots.c.size
        self.plan, self.slots = plan, plan.slots
        self.c.of, self.c.stage, self.c.ended = &plan.c, GONE, True  # until it is one of `Plan.begin`
        self.parts = <char**>calloc(2 * size, sizeof(char*))
        self.c.sources = <uint64_t*>calloc(2 * size, sizeof(uint64_t))
        if self.parts == NULL or self.c.sources == NULL:
            raise MemoryError
        self.c.results = self.c.sources + size

    def __dealloc__(self):
        free(self.parts)
        free(self.c.sources)

    # ── what it is ──

    @property
    def seq(self):
        return self.c.seq

    @property
    def code(self):
        return self.c.code

    @property
    def moves(self):
        return self.c.moves

    @property
    def exposed(self):
        return self.c.exposed != 0

    @property
    def has_arrived(self):
        return self.c.stage not in (ARRIVE, GONE)

    @property
    def ended(self):
        return has_ended(&self.c)

    def end(self):
        end_exchange(&self.c)

    # ── its arrays ──

    cdef int point(self, list arrays, char** parts, bint each, const size_t* sizes, size_t one) except -1:
        """Note where parts lie: one array for all, or of all, or one for each member. They are checked: what C
        reads later has to be there."""
        cdef const plan* of = self.c.of
        cdef np.ndarray array
        cdef Py_ssize_t index, count = len(arrays)
        cdef size_t size
        if count != 1 and (not each or count != of.all.size):
            raise ValueError(f"{count} parts for {of.all.size} members")
        for index in range(count):
            array = arrays[index]
            if array is None or not PyArray_IS_C_CONTIGUOUS(array) or <size_t>np.PyArray_ITEMSIZE(array) != of.itemsize:
                raise ValueError("no contiguous array of the plan's dtype")
            size = one if not each else of.total if count == 1 else sizes[index]
            if <size_t>np.PyArray_SIZE(array) != size:
                raise ValueError(f"an array of {np.PyArray_SIZE(array)} elements in the place of {size}")
            parts[index] = <char*>np.PyArray_DATA(array)
        if each and count == 1:
            spread(of, parts, parts[0], True)
        return 0

    cdef int lay_out(self) except -1:
        """Find where the data of this operation lies. No data is touched."""
        cdef exchange* x = &self.c
        cdef const plan* of = x.of
        cdef int size = of.all.size
        cdef bint whole = of.kind == EACH or of.kind == REDUCE
        x.send = x.recv = NULL
        if of.kind == MEET:
            self.needs = 0
            return 0
        if self.send:
            self.point(self.send, self.parts, not whole and not of.alike, of.sizes,
                       of.total if whole else of.sizes[of.all.rank])
            x.send = self.parts
        if self.recv:
            self.point(self.recv, self.parts + size, of.sorts, of.sizes,
                       of.total if whole else of.longest if of.alike else of.sizes[of.all.rank])
            x.recv = self.parts + size
        x.fills = self.made is not None and bool(self.made.before or self.made.factor is not None)
        self.place()
        return 0

    cdef int lay_plain(self, np.ndarray send, np.ndarray recv) noexcept:
        """`lay_out` for arrays that fit: contiguous, with the parts of all members side by side."""
        cdef exchange* x = &self.c
        cdef const plan* of = x.of
        cdef int size = of.all.size
        x.send = x.recv = NULL
        self.given, self.got = send, recv
        if send is not None:
            spread(of, self.parts, <char*>np.PyArray_DATA(send), of.kind == SHARE and not of.alike)
            x.send = self.parts
        if recv is not None:
            spread(of, self.parts + size, <char*>np.PyArray_DATA(recv), of.sorts)
            x.recv = self.parts + size
        x.fills = False
        self.place()
        return 0

    cdef void place(self) noexcept:
        """Find where source and result lie in the segment, and how much staging is needed."""
        cdef exchange* x = &self.c
        cdef const plan* of = x.of
        cdef int size = of.all.size
        cdef size_t parts
        x.source = x.result = 0
        x.exposed = x.shown = False
        self.needs = 0
        if of.in_slot or of.kind == MEET:
            return
        if of.kind == EACH:
            self.needs = of.longest * of.itemsize
        elif of.kind == SHARE:
            if x.send == NULL or not any_other(of.gets, size, of.all.rank):
                return
            x.source = self.side_by_side()
            x.exposed = x.source != 0
            self.needs = 0 if x.exposed else of.depth * of.lanes * of.lane
        else:
            x.source = self.offset_of(x.send[0], of.total * of.itemsize)
            if x.recv != NULL:
                x.result = self.offset_of(x.recv[0], of.total * of.itemsize)
            x.exposed, x.shown = x.source != 0, x.result != 0
            parts = (0 if x.exposed else <size_t>(size - 1)) + (0 if x.shown else 1)
            self.needs = of.depth * parts * of.lane

    cdef uint64_t offset_of(self, const char* at, size_t nbytes) noexcept:
        """The offset of memory in this process's segment; 0 where it lies elsewhere."""
        cdef const plan* of = self.c.of
        cdef const char* first = <const char*>of.all.members[of.all.rank].segment.words
        cdef size_t size = of.all.members[of.all.rank].segment.nbytes
        return <uint64_t>(at - first) if at > first and at + nbytes <= first + size else 0

    cdef uint64_t side_by_side(self) noexcept:
        """The place of the source if peers can read it in the segment, its parts side by side; else 0."""
        cdef const plan* of = self.c.of
        cdef char** send = self.c.send
        cdef int index
        if of.alike:
            return self.offset_of(send[0], of.sizes[of.all.rank] * of.itemsize)
        for index in range(of.all.size):
            if of.sizes[index] and send[index] != send[0] + of.starts[index] * of.itemsize:
                return 0
        return self.offset_of(send[0], of.total * of.itemsize)

    cpdef publish(self, uint64_t staging=0):
        cdef exchange* x = &self.c
        cdef const unsigned char* signature = self.signature
        cdef const plan* of = x.of
        if not self.slots.is_open() or (self.needs and not staging):
            raise ValueError("the segment is gone, or there is no staging")
        if of.kind == EACH and not of.in_slot:
            x.source = staging
        elif of.kind == SHARE and self.needs:
            x.source = staging
        elif of.kind == REDUCE:
            if not x.exposed:
                x.source = staging
                staging += of.depth * (of.all.size - 1) * of.lane
            if not x.shown:
                x.result = staging
        if self.made is not None and not of.in_thread:
            self.made.fill()
        if not is_seen(&self.slots.c, slot_of(x.seq)):
            self.plan.owner.reuse(x.seq)
        if self.plan.is_long:
            with nogil:
                exchange_begin(x, signature)
        else:
            exchange_begin(x, signature)

    # ── going on ──

    cdef bint is_writable(self) except -1:
        """Whether what is written still may be: its owner may have forbidden it meanwhile. Where parts are received
        they are views of the owner's arrays, and have flags of their own."""
        if self.got is not None:
            return PyArray_ISWRITEABLE(self.got)
        return not self.recv or all_writable(self.recv) and (
            self.operation is None or all_writable(self.operation.target)
        )

    cdef int look(self):
        """Go as far as peers let it. No Python code runs, but where regions are still looked for."""
        if not self.slots.is_open():
            return WAIT
        if not self.is_writable():
            return READ_ONLY
        if not self.slots.made:
            self.slots.made = all_made(&self.slots.c) or self.plan.owner.board.complete()
        if self.plan.is_long:
            with nogil:
                return exchange_advance(&self.c)
        return exchange_advance(&self.c)

    cpdef bint settle(self, int outcome) except? -1:
        """Do what an outcome asks for → whether the operation is over."""
        while outcome == FILL_NOW:
            self.made.fill()
            outcome = self.look()
        if outcome == OVER:
            if self.made is not None:
                self.made.empty()
            self.convert()
            if self.start is not None:
                self.start()  # which may break the group, and then this is withdrawn, too
            return True
        if outcome == DIFFERS:
            self.plan.owner.disagrees(self.c.seq, self.c.trouble)
        elif outcome == READ_ONLY:
            raise ValueError("an array that the operation writes is read-only now")
        elif outcome == OUTSIDE:
            raise self.plan.owner.board.outside(self.c.trouble)
        return False

    def advance(self):
        return self.settle(self.look())

    def compare(self):
        if self.slots.is_open() and exchange_differs(&self.c):
            self.plan.owner.disagrees(self.c.seq, self.c.trouble)

    cpdef bint step(self):
        if has_ended(&self.c):
            return True
        # What the thread carries out is the thread's alone.
        return False if self.busy or self.plan.in_thread else self.act(self.look())

    cdef bint act(self, int what):
        """Do what an outcome asks for, and end the operation if it is over → whether it is, or can never be."""
        if what == WAIT and (self.operation is None or self.c.stage == ARRIVE):
            return has_ended(&self.c)
        self.busy = True
        try:
            over = self.settle(what)
        except Exception as error:
            self.plan.owner.failed(error)
            return True
        finally:
            self.busy = False
        if not over or has_ended(&self.c):  # that itself may have broken the group
            if self.c.stage not in (ARRIVE, GONE) and self.operation is not None:
                self.plan.owner.arrived(self)
            return has_ended(&self.c)
        if self.slots.c.unseen and self.plan.sees_all and self.plan.owner.disagreed_before(self):
            return True
        if self.operation is None:
            self.finish_plain()
        else:
            self.plan.owner.over(self)
        return True

    cdef int convert(self) except -1:
        """Make what the Work gives of the result: what raises here breaks the group, as all copies do."""
        cdef Handle work
        if isinstance(self.work, Handle):
            work = self.work
            if work._convert is not None:
                work._result, work._convert = work._convert(work._result), None
                if self.operation is not None:
                    self.operation.result = work._result
        return 0

    cdef int finish_plain(self) except -1:
        """End an operation that is not in flight."""
        cdef Handle work = self.work
        self.note_over()
        self.slots.remove(self.c.seq)
        self.drop()
        work.finish(work._result)
        return 0

    cpdef note_over(self):
        """Note that this rank reads nothing of the operation any more, and what it ended without a look at."""
        cdef Slots slots = self.slots
        cdef unsigned slot = slot_of(self.c.seq)
        end_exchange(&self.c)
        if not slots.is_open():
            return
        note_finished(&slots.c, self.c.seq)
        if not slots.end_of_turn.due:
            self.plan.owner.hub.end_of_turn_soon()  # it rings peers that wait for the slot
        if not self.plan.sees_all:
            if slots.c.unseen and (not slots.made or look_back(&slots.c, first_unseen(&slots.c)) >= 0):
                self.plan.owner.look_back(slots.unseen[:1])
            slots.c.unseen |= <uint64_t>1 << slot
            slots.c.unseen_seq[slot] = self.c.seq
            slots.c.unseen_code[slot] = self.c.code

    cpdef drop(self):
        cdef object work = self.work
        if self.idle:
            return
        self.idle = True
        if isinstance(work, Handle) and (<Handle>work)._driver is self:
            (<Handle>work)._driver = None  # it may go on, and this is another operation's then
        self.send = self.recv = NOTHING
        self.c.send = self.c.recv = NULL
        self.operation = self.work = self.made = self.start = self.given = self.got = None
        if len(self.slots.pool) < POOL:
            self.slots.pool.append(self)

    def poll(self):
        self.bring_on()

    cdef int bring_on(self) except -1:
        cdef int what, looks, index
        cdef EndOfTurn turn
        cdef double ends
        if self.step():
            return 0
        hub, turn = self.plan.owner.hub, self.slots.end_of_turn
        looks = turn.looks
        if not looks or self.busy or not self.slots.is_open():
            hub.end_of_turn_soon()  # which rings with a fence for what was written here
            return 0
        for index in range(FIRST_LOOKS if looks > 1 else 1):
            relax()
            what = self.look()
            if what != WAIT:
                if self.act(what):
                    return 0
                break
        if not turn.polled:
            hub.awake()
        ends = turn.turn.start(turn.poll)
        what = WAIT
        if self.slots.made and not has_ended(&self.c):
            with nogil:
                while what == WAIT and monotonic_seconds() < ends:
                    sched_yield()  # the peer may wait for this very core
                    for index in range(looks):
                        what = exchange_advance(&self.c)
                        if what != WAIT:
                            break
                        relax()
        turn.turn.stop()
        if what != WAIT:
            self.act(what)
        return 0


cdef bint all_writable(arrays) except -1:
    """Whether an array, or all of a list, may be written."""
    if isinstance(arrays, np.ndarray):
        return PyArray_ISWRITEABLE(arrays)
    for array in arrays or NOTHING:
        if not PyArray_ISWRITEABLE(array):
            return False
    return True


cdef inline bint any_other(const unsigned char* which, int size, int rank) noexcept:
    cdef int index
    for index in range(size):
        if which[index] and index != rank:
            return True
    return False


cdef inline void spread(const plan* of, char** parts, char* at, bint each) noexcept:
    """Note the parts of an array: all of it, or one for each member."""
    cdef int index
    parts[0] = at
    if each:
        for index in range(of.all.size):
            parts[index] = at + of.starts[index] * of.itemsize


@cython.final
cdef class Signal:
    cdef int c

    def set(self):
        set_flag(&self.c, 1)

    def clear(self):
        set_flag(&self.c, 0)


def drive(list active not None, double seconds, Signal stop not None):
    cdef int count = <int>len(active), index, early, found = 0
    cdef exchange** xs = <exchange**>malloc((count + 1) * (sizeof(exchange*) + sizeof(int)))
    cdef int* outcomes = <int*>(xs + count + 1)
    cdef uint64_t before, after
    cdef double idle_since
    cdef Exchange one
    if xs == NULL:
        raise MemoryError
    try:
        for index in range(count):
            one = active[index]
            if not one.slots.made:
                one.slots.made = one.slots.complete or one.plan.owner.board.complete()
            # The segment is there: its owner ends this thread before it lets go of it.
            xs[index], outcomes[index] = &one.c, WAIT
            if not one.is_writable():
                outcomes[index], found = READ_ONLY, 1
        with nogil:
            idle_since = monotonic_seconds()
            while not found:
                before = after = 0
                for index in range(count):
                    before += xs[index].moves
                    if has_ended(xs[index]):
                        found = 1
                    else:
                        early = <int>(xs[index].stage == ARRIVE)
                        outcomes[index] = exchange_advance(xs[index])
                        if outcomes[index] != WAIT or (early and xs[index].stage != ARRIVE):
                            found = 1
                    after += xs[index].moves
                if found or flag_is_set(&stop.c):
                    break
                if after != before:
                    idle_since = monotonic_seconds()
                elif monotonic_seconds() - idle_since >= seconds:
                    break
                else:
                    sched_yield()
        return [outcomes[index] for index in range(count)]
    finally:
        free(xs)


cdef object reader_hook = None

cdef void call_hook() noexcept with gil:
    if reader_hook is not None:
        reader_hook()


def before_reads(hook):
    global reader_hook, before_read
    reader_hook = hook
    if hook is None:
        before_read = NULL
    else:
        before_read = call_hook
