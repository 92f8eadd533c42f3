# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""Rings of records between two processes: see `ring.pyi`."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t

from aiodist._engine.errors import RingError

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

cdef extern from "words.h" nogil:
    uint64_t word_load(const uint64_t* word)
    void word_store(uint64_t* word, uint64_t value)
    void full_fence()

FINGERPRINT = AIODIST_FINGERPRINT.decode()
RING_LAYOUT = (RING_WAITS, RING_ADDRESS, RING_TAKEN, RING_WORDS, RING_RECORDS)



cdef class Held:
    """Two processes' memory, held as long as C may touch it."""

    cdef char* hold(self, view, bint writable, uint64_t at, uint64_t nbytes) except NULL:
        """Hold a piece of memory."""
        cdef Py_buffer* one = &self.held[self.count]
        PyObject_GetBuffer(view, one, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.count += 1
        if at % 8 or <size_t>one.buf % 8 or at > <uint64_t>one.len or nbytes > <uint64_t>one.len - at:
            raise ValueError("a ring beyond its memory, or not aligned")
        return <char*>one.buf + at

    cdef void let_go(self):
        while self.count:
            self.count -= 1
            PyBuffer_Release(&self.held[self.count])


@cython.final
cdef class Producer(Held):
    def __cinit__(self, view, uint64_t at, uint64_t size, theirs, uint64_t theirs_at):
        cdef char* mine
        if not 0 < size < <uint64_t>1 << 40 or size % 8:
            raise ValueError("no size of a ring")
        mine = self.hold(view, True, at, RING_RECORDS + size)
        self.c.taken_word = <const uint64_t*>(self.hold(theirs, False, theirs_at, RING_RECORDS) + RING_TAKEN)
        self.c.word, self.c.waits = <uint64_t*>mine, <uint64_t*>(mine + RING_WAITS)
        self.c.records, self.c.size = mine + RING_RECORDS, size
        self.clear = True

    def __dealloc__(self):
        self.let_go()

    def append(self, bytes header not None, payload):
        cdef int outcome
        cdef Py_buffer data
        cdef uint64_t length = <uint64_t>len(header)
        if self.c.word == NULL:
            return False
        PyObject_GetBuffer(payload, &data, PyBUF_SIMPLE)
        try:
            if not length or length % 8 or length + <uint64_t>data.len > self.c.size // 2:
                raise ValueError(f"a record of {length} and {data.len} bytes in a ring of {self.c.size}")
            outcome = producer_append(&self.c, <const char*>header, length, data.buf, data.len)
        finally:
            PyBuffer_Release(&data)
        if outcome == WRONG_COUNT:
            raise RingError(
                f"{word_load(self.c.taken_word)} bytes of a ring taken, after {self.c.taken}, of {self.c.head}"
            )
        return outcome == APPENDED

    def wait(self, bint waits):
        if self.c.word != NULL:
            word_store(self.c.waits, waits)
            full_fence()  # who says so looks for room afterwards

    def release(self):
        self.c.word = self.c.waits = NULL
        self.clear = False
        self.let_go()


@cython.final
cdef class Consumer(Held):
    def __cinit__(self, view, uint64_t at, uint64_t size, mine, uint64_t mine_at):
        cdef const char* theirs
        if not 0 < size < <uint64_t>1 << 40 or size % 8:
            raise ValueError("no size of a ring")
        theirs = self.hold(view, False, at, RING_RECORDS + size)
        self.c.taken_word = <uint64_t*>(self.hold(mine, True, mine_at, RING_RECORDS) + RING_TAKEN)
        self.c.word, self.c.waits = <const uint64_t*>theirs, <const uint64_t*>(theirs + RING_WAITS)
        self.c.records, self.c.size = theirs + RING_RECORDS, size
        self.shown = memoryview(view)[at + RING_RECORDS:at + RING_RECORDS + size].toreadonly()

    def __dealloc__(self):
        self.let_go()

    @property
    def taken(self):
        return self.c.taken

    def waiting(self):
        return consumer_is_waiting(&self.c)

    def head(self):
        return word_load(self.c.word) if self.c.word != NULL else self.c.taken

    def first(self):
        cdef uint64_t nbytes = 0
        cdef const char* record
        if self.c.word == NULL:
            raise ValueError("the ring is let go of")
        record = consumer_first(&self.c, &nbytes)
        if record == NULL:
            raise RingError(f"a ring whose head is {<int64_t>nbytes} bytes ahead")
        return self.shown[record - self.c.records:record - self.c.records + <Py_ssize_t>nbytes]

    def took(self, uint64_t nbytes):
        if self.c.word != NULL:
            consumer_took(&self.c, nbytes)

    def awaited(self):
        if self.c.word == NULL:
            return False
        full_fence()  # room was made; the producer says that it waits, and looks for room then
        return word_load(self.c.waits) != 0

    def release(self):
        self.c.word = self.c.waits = NULL
        self.shown = None
        self.let_go()
