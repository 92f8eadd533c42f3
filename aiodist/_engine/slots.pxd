# The C side of slots.h, and the classes that own its structures.

from libc.stdint cimport uint64_t

from aiodist._engine.handle cimport TurnClock

cdef extern from "slots.h" nogil:
    enum: SLOTS, PAYLOAD, SLOT_HEADER, SIGNATURE_BYTES, SIGNATURE_AT, STRIDE, REGION
    enum: CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT
    enum: ASLEEP_LOOP, ASLEEP_BULK

    ctypedef struct memory:
        uint64_t* words
        size_t nbytes
        int bell
        uint64_t ring_bulk
        uint64_t loop_rung
        uint64_t bulk_rung

    ctypedef struct member:
        memory* segment
        uint64_t base

    ctypedef struct group:
        int rank
        int size
        uint64_t low
        member* members
        uint64_t unseen
        uint64_t unseen_seq[64]
        uint64_t unseen_code[64]

    unsigned slot_of(uint64_t seq)
    uint64_t head_of(uint64_t seq)
    uint64_t* own_slot(const group* all, uint64_t seq)
    const uint64_t* slot_at(const member* who, uint64_t seq)
    uint64_t word_load(const uint64_t* word)
    void word_store(uint64_t* word, uint64_t value)
    void full_fence()
    void relax()
    void wake_loop(memory* who)
    void wake_bulk(memory* who)
    void ring(group* all, int loops, int bulks)
    bint all_made(const group* all)
    bint all_finished(const group* all, uint64_t seq)
    bint has_finished(const member* who, uint64_t seq)
    bint slot_is_free(const group* all, uint64_t seq)
    void note_finished(group* all, uint64_t seq)
    bint differs(const group* all, uint64_t theirs, uint64_t code)
    int look_back(group* all, unsigned slot)
    unsigned first_unseen(const group* all)
    bint is_seen(group* all, unsigned slot)


cdef class Memory:
    cdef memory c
    cdef Py_buffer held
    cdef bint is_held
    cdef void let_go(self)

cdef class EndOfTurn:
    cdef public bint due, polled
    cdef readonly double poll
    cdef readonly int looks
    cdef TurnClock turn

cdef class Slots:
    cdef group c
    cdef readonly EndOfTurn end_of_turn
    cdef list memories
    cdef list running  # by slot: the exchange that the loop carries out
    cdef readonly Py_ssize_t count
    cdef public bint watched
    cdef list pool
    cdef readonly bint closed
    cdef bint made  # all members have made the group
    cdef bint is_open(self) noexcept
    cdef int checked(self, int index) except -1
    cdef int put(self, uint64_t seq, object exchange) except -1
    cdef int remove(self, uint64_t seq) except -1
