# Bytes that grow, and the two ways between a small plain value and its bytes.

from libc.stdint cimport uint64_t


cdef class Room:
    cdef char* data
    cdef size_t nbytes, held
    cdef char* grow(self, size_t nbytes) except NULL
    cdef take(self)
    cdef int head(self, unsigned char small, unsigned int smallest, unsigned char first, bint has_byte, uint64_t count) except -1
    cdef int number(self, unsigned char first, uint64_t number, int nbytes) except -1
    cdef bint leaf(self, object x) except -1
    cdef bint value(self, object x, int* values, int* containers) except -1
    cdef bint write_plain(self, object x) except -1

    @staticmethod
    cdef object read(const char* data, size_t nbytes, bint* found)
