# The C side of exchange.h, and the classes that own its structures.

cimport numpy as np
from libc.stdint cimport uint64_t

from aiodist._engine.handle cimport Driver, Handle
from aiodist._engine.slots cimport Slots, group

cdef extern from "plan.h" nogil:
    enum: MEET, EACH, SHARE, REDUCE
    enum: WAIT, OVER, FILL_NOW, DIFFERS, OUTSIDE
    enum: ARRIVE, GONE
    ctypedef void (*combine_loop)(const void*, const void*, void*, size_t)
    ctypedef void (*finish_loop)(void*, int, size_t)

    ctypedef struct plan:
        group* all
        int kind
        int in_thread
        int in_slot
        int cut
        int alike
        int sorts
        int collects
        size_t itemsize
        size_t alignment
        combine_loop combine
        finish_loop finish
        unsigned char* gives
        unsigned char* gets
        size_t* sizes
        size_t* starts
        size_t longest
        size_t total
        size_t block
        size_t count
        size_t larger
        size_t fewer
        size_t depth
        size_t most
        size_t most_larger
        size_t most_depth
        size_t lane
        size_t lanes

    ctypedef struct exchange:
        const plan* of
        uint64_t seq
        uint64_t code
        uint64_t* own
        char** send
        char** recv
        int stage
        size_t block
        size_t count
        uint64_t source
        uint64_t result
        int exposed
        int shown
        int fills
        uint64_t* sources
        uint64_t* results
        uint64_t moves
        int trouble
        int ended


cdef class Plan:
    cdef plan c
    cdef Slots slots
    cdef readonly object call
    cdef readonly object path
    cdef readonly object owner
    cdef readonly bint in_thread
    cdef readonly bint sees_all
    cdef readonly uint64_t digest
    cdef readonly bytes signature
    cdef bint is_long
    cdef int make_room(self) except -1
    cdef void lay(self) noexcept
    cdef Plan like(self, object call, size_t count, int ndim, np.npy_intp* dims)
    cdef Exchange exchange(self, uint64_t seq)

cdef class Exchange(Driver):
    cdef exchange c
    cdef readonly Plan plan
    cdef Slots slots
    cdef char** parts
    cdef readonly list send
    cdef readonly list recv
    cdef np.ndarray given, got  # of an operation that the starter began
    cdef bytes signature
    cdef public object made
    cdef public object operation
    cdef public object work
    cdef public object start
    cdef public bint seen
    cdef bint busy, idle
    cdef readonly size_t needs
    cdef int point(self, list arrays, char** parts, bint each, const size_t* sizes, size_t one) except -1
    cdef int lay_out(self) except -1
    cdef int lay_plain(self, np.ndarray send, np.ndarray recv) noexcept
    cdef void place(self) noexcept
    cpdef publish(self, uint64_t staging=*)
    cdef uint64_t offset_of(self, const char* at, size_t nbytes) noexcept
    cdef uint64_t side_by_side(self) noexcept
    cdef bint is_writable(self) except -1
    cdef int look(self)
    cpdef bint settle(self, int outcome) except? -1
    cpdef bint step(self)
    cdef bint act(self, int what)
    cdef int convert(self) except -1
    cdef int finish_plain(self) except -1
    cpdef note_over(self)
    cpdef drop(self)
