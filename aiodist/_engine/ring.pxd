# The C side of ring.h, and the classes that own its structures.

from libc.stdint cimport uint64_t

cdef extern from "ring.h" nogil:
    enum: RING_WAITS, RING_ADDRESS, RING_TAKEN, RING_WORDS, RING_RECORDS
    enum: APPENDED, NO_ROOM, WRONG_COUNT

    ctypedef struct producer:
        uint64_t* word
        uint64_t* waits
        char* records
        uint64_t size
        const uint64_t* taken_word
        uint64_t head
        uint64_t taken

    ctypedef struct consumer:
        const uint64_t* word
        const uint64_t* waits
        const char* records
        uint64_t size
        uint64_t* taken_word
        uint64_t taken

    int producer_append(producer* p, const void* header, size_t length, const void* payload, size_t nbytes)
    bint consumer_is_waiting(const consumer* c)
    const char* consumer_first(consumer* c, uint64_t* nbytes)
    void consumer_took(consumer* c, uint64_t nbytes)


cdef class Held:
    cdef Py_buffer held[2]
    cdef int count
    cdef char* hold(self, view, bint writable, uint64_t at, uint64_t nbytes) except NULL
    cdef void let_go(self)

cdef class Producer(Held):
    cdef producer c
    cdef public bint clear

cdef class Consumer(Held):
    cdef consumer c
    cdef object shown  # the records, for Python
    cdef public bint busy
