# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""A group's slots in the segments of its members: see `slots.pyi`."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from aiodist._engine.handle cimport TurnClock

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()
LAYOUT = (SLOTS, PAYLOAD, SLOT_HEADER, STRIDE, REGION, CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT,
          ASLEEP_LOOP, ASLEEP_BULK)


def fence():
    full_fence()


@cython.final
cdef class Memory:
    def __cinit__(self, view, int bell=-1, uint64_t ring_bulk=0, *, bint writable=False):
        self.c.bell = -1
        PyObject_GetBuffer(view, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.is_held = True
        self.c.words = <uint64_t*>self.held.buf
        self.c.nbytes = <size_t>self.held.len
        self.c.bell = bell
        self.c.ring_bulk = ring_bulk
        if self.c.nbytes < (ASLEEP_BULK + 1) * 8 or <size_t>self.held.buf % 8:
            raise ValueError("no segment: too small, or not aligned")

    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self):
        self.c.words = NULL
        self.c.nbytes = 0
        self.c.bell = -1
        if self.is_held:
            self.is_held = False
            PyBuffer_Release(&self.held)

    def release(self):
        self.let_go()

    def wake_loop(self):
        if self.c.words != NULL:
            wake_loop(&self.c)

    def wake_bulk(self):
        if self.c.words != NULL:
            wake_bulk(&self.c)


@cython.final
cdef class EndOfTurn:
    def __cinit__(self, TurnClock turn not None, double poll, int looks):
        self.turn, self.poll, self.looks = turn, poll, looks


@cython.final
cdef class Slots:
    def __cinit__(self, list memories not None, int rank, uint64_t low, EndOfTurn end_of_turn not None):
        cdef Py_ssize_t size = len(memories), index
        cdef Memory one
        if not 0 <= rank < size:
            raise ValueError("rank is no member")
        self.c.members = <member*>calloc(size, sizeof(member))
        if self.c.members == NULL:
            raise MemoryError
        self.c.rank, self.c.size, self.c.low = rank, <int>size, low
        for index in range(size):
            one = memories[index]
            self.c.members[index].segment = &one.c
        self.memories = list(memories)
        self.end_of_turn = end_of_turn
        self.running = [None] * SLOTS
        self.pool = []

    def __dealloc__(self):
        free(self.c.members)

    cdef bint is_open(self) noexcept:
        # All segments are let go of together.
        return not self.closed and self.c.members[self.c.rank].segment.words != NULL

    cdef int put(self, uint64_t seq, object exchange) except -1:
        self.count += self.running[slot_of(seq)] is None
        self.running[slot_of(seq)] = exchange
        return 0

    cdef int remove(self, uint64_t seq) except -1:
        if self.running[slot_of(seq)] is not None:
            self.running[slot_of(seq)] = None
            self.count -= 1
        return 0

    def add(self, exchange):
        self.put(exchange.seq, exchange)

    def discard(self, exchange):
        if self.running[slot_of(exchange.seq)] is exchange:
            self.remove(exchange.seq)

    def exchanges(self):
        return sorted([one for one in self.running if one is not None], key=_number) if self.count else []

    def clear(self):
        self.running = [None] * SLOTS
        self.count = 0
        self.pool.clear()

    def close(self):
        self.closed = True
        self.clear()

    def place(self, int index, uint64_t at):
        cdef member* who = &self.c.members[self.checked(index)]
        if at % 8 or at + REGION > who.segment.nbytes:
            raise ValueError("a region beyond its segment")
        who.base = at // 8
        if index == self.c.rank:
            memset(<char*>who.segment.words + at, 0, SLOTS * 8)
            for slot in range(SLOTS):
                memset(who.segment.words + who.base + head_of(slot), 0, SLOT_HEADER)

    cdef int checked(self, int index) except -1:
        if not 0 <= index < self.c.size:
            raise ValueError("no such member")
        if not self.is_open():
            raise ValueError("the segment is gone")
        return index

    @property
    def complete(self):
        return all_made(&self.c)

    def has_made(self, int index):
        return self.c.members[self.checked(index)].base != 0

    def word(self, int index, uint64_t seq, int word):
        return word_load(slot_at(&self.c.members[self.checked(index)], seq) + word) if 0 <= word < 8 else 0

    def signature(self, int index, uint64_t seq):
        cdef const char* at = <const char*>slot_at(&self.c.members[self.checked(index)], seq)
        return at[SIGNATURE_AT:SIGNATURE_AT + SIGNATURE_BYTES]

    def free(self, uint64_t seq):
        return self.is_open() and slot_is_free(&self.c, seq)

    def all_finished(self, uint64_t seq):
        return self.is_open() and all_finished(&self.c, seq)

    def finished(self, uint64_t seq):
        if self.is_open():
            note_finished(&self.c, seq)

    def pass_over(self, uint64_t seq):
        if not self.is_open():
            return True
        if not slot_is_free(&self.c, seq) or not is_seen(&self.c, slot_of(seq)):
            return False
        word_store(own_slot(&self.c, seq) + CODE, 0)
        note_finished(&self.c, seq)
        return True

    def withdraw(self, numbers):
        if not self.is_open():
            return  # nobody of this process can write there through it any more
        for seq in numbers:
            word_store(own_slot(&self.c, seq) + CODE, 0)
        # A peer that looks at CODE after it has read finds 0 before it can find what is written there from now
        # on: also what the C library writes past the cache, which may overtake other stores.
        ring(&self.c, 1, 1)

    def ring(self):
        if self.is_open():
            ring(&self.c, 1, 1)

    def begun(self, uint64_t seq):
        cdef uint64_t theirs
        found = set()
        if self.is_open():
            for index in range(self.c.size):
                if index != self.c.rank and self.c.members[index].base:
                    theirs = word_load(slot_at(&self.c.members[index], seq) + CODE)
                    stands = theirs and not (theirs ^ (seq + 1)) & self.c.low
                    if stands or has_finished(&self.c.members[index], seq):
                        found.add(index)
        return found

    @property
    def unseen(self):
        return [self.c.unseen_seq[slot] for slot in range(SLOTS) if self.c.unseen >> slot & 1]

    def look_back(self, numbers):
        cdef int differing
        cdef unsigned slot
        if self.is_open():
            for seq in numbers:
                slot = slot_of(seq)
                if self.c.unseen >> slot & 1 and self.c.unseen_seq[slot] == <uint64_t>seq:
                    differing = look_back(&self.c, slot)
                    if differing >= 0:
                        return seq, differing
        return None

    def forget_unseen(self, uint64_t seq):
        self.c.unseen &= ~(<uint64_t>1 << slot_of(seq))


def _number(exchange):
    return exchange.seq
