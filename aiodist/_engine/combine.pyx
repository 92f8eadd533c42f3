# cython: auto_pickle=False, autotestdict=False
"""Reductions of two arrays into a third, and halves times a number: see `combine.pyi`.

The loops themselves are C (loops.h), which a compiler turns into vector instructions. Here is what they need of
Python: the check that three arrays fit, and the interpreter released while a long one runs.
"""

cimport cython
cimport numpy as np

np.import_array()

cdef extern from "loops.h" nogil:
    ctypedef void (*combine_loop)(const void*, const void*, void*, size_t)
    ctypedef void (*scale_loop)(void*, float, size_t)
    combine_loop combine_loop_for(int type, int op)
    size_t size_of(int type)
    scale_loop scale_loop_for(int type, int divide)

cdef extern from "numpy/arrayobject.h":
    int PyArray_ISCARRAY_RO(np.ndarray array)
    int PyArray_ISCARRAY(np.ndarray array)

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()

# From so many bytes on other threads may run meanwhile. A shorter loop takes some microseconds, and to get the
# interpreter back may take longer where another thread has it.
cdef enum:
    RELEASED_FROM = 32 * 1024


@cython.final
cdef class Combiner:
    cdef combine_loop loop
    cdef object dtype
    cdef object otherwise
    cdef Py_ssize_t itemsize

    def __cinit__(self, dtype, int code, int op, otherwise):
        self.loop = combine_loop_for(code, op)
        if self.loop == NULL or size_of(code) != <size_t>dtype.itemsize:
            raise ValueError(f"operation {op} has no meaning for {dtype}")
        self.dtype = dtype
        self.otherwise = otherwise
        self.itemsize = dtype.itemsize

    cdef bint is_ours(self, np.ndarray array):
        return array.descr is self.dtype or array.dtype == self.dtype

    def __call__(self, np.ndarray left not None, np.ndarray right not None, np.ndarray out not None):
        cdef np.npy_intp count = np.PyArray_SIZE(out)
        cdef const void* a
        cdef const void* b
        cdef void* to
        if np.PyArray_SIZE(left) != count or np.PyArray_SIZE(right) != count:
            raise ValueError("arrays of different sizes")
        if not (self.is_ours(left) and self.is_ours(right) and self.is_ours(out)):
            raise ValueError(f"arrays of {left.dtype}, {right.dtype} and {out.dtype} in the place of {self.dtype}")
        if not (PyArray_ISCARRAY_RO(left) and PyArray_ISCARRAY_RO(right) and PyArray_ISCARRAY(out)):
            self.otherwise(left, right, out)
            return
        a, b, to = np.PyArray_DATA(left), np.PyArray_DATA(right), np.PyArray_DATA(out)
        if count * self.itemsize < RELEASED_FROM:
            self.loop(a, b, to, count)
        else:
            with nogil:
                self.loop(a, b, to, count)


def scale_halves(np.ndarray array not None, int code, float number, bint divide):
    cdef scale_loop loop = scale_loop_for(code, divide)
    cdef np.npy_intp count = np.PyArray_SIZE(array)
    cdef void* at
    if loop == NULL or np.PyArray_ITEMSIZE(array) != 2:
        raise ValueError(f"{array.dtype} is no half")
    if not PyArray_ISCARRAY(array):
        raise ValueError("the array must be contiguous, aligned and writable")
    at = np.PyArray_DATA(array)
    if count * 2 < RELEASED_FROM:
        loop(at, number, count)
    else:
        with nogil:
            loop(at, number, count)
