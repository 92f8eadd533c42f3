# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""Small plain values as bytes, and back: see `plain.pyi`."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next, PyDict_SetItem, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* nbytes) except NULL
    object PyUnicode_DecodeUTF8(const char* data, Py_ssize_t nbytes, const char* errors)
    int64_t PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyUnicode_IS_ASCII(object text)
    int PyUnicode_KIND(object text)
    void* PyUnicode_DATA(object text)
    Py_UCS4 PyUnicode_READ(int kind, void* data, Py_ssize_t index)
    object PyLong_FromLongLong(int64_t number)
    object PyLong_FromUnsignedLongLong(uint64_t number)
    object PyFloat_FromDouble(double number)

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()

cdef object NOT = object()

cdef enum:
    FORMAT = 1  # as `net/wire/objects.py` has these
    HEADER = 9
    FEW = 256  # values
    CONTAINERS = 64
    MOST = 16 << 10  # characters of a text, bytes
    MOST_READ = 64 << 10  # bytes of what is read here
    FEW_KEYS = 100  # what has more may have been made to share hash values
    KEPT = 64 << 10  # bytes of room that is not given back


cdef struct reader:
    const unsigned char* at
    const unsigned char* end
    int values
    int containers


cdef inline void big_endian(char* to, uint64_t number, int nbytes) noexcept nogil:
    cdef int index
    for index in range(nbytes):
        to[index] = <char>(number >> (8 * (nbytes - 1 - index)))


cdef inline uint64_t number_of(const unsigned char* data, int nbytes) noexcept nogil:
    cdef uint64_t number = 0
    cdef int index
    for index in range(nbytes):
        number = number << 8 | data[index]
    return number


cdef inline bint is_encodable(object text):
    """Whether a text holds no half of a surrogate pair: to find out by an error could run a finalizer."""
    cdef Py_ssize_t index
    cdef int kind
    if not PyUnicode_IS_ASCII(text):
        kind = PyUnicode_KIND(text)
        if kind > 1:
            for index in range(len(<str>text)):
                if 0xD800 <= PyUnicode_READ(kind, PyUnicode_DATA(text), index) < 0xE000:
                    return False
    return True


cdef class Room:
    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef char* grow(self, size_t nbytes) except NULL:
        """Make room for so many bytes more → where they go."""
        cdef size_t held = self.held
        cdef char* data
        if self.nbytes + nbytes > held or self.data == NULL:  # which says that there is no memory
            while not held or held < self.nbytes + nbytes:
                held = 2 * held if held else 1024
            data = <char*>PyMem_Realloc(self.data, held)
            if data == NULL:
                raise MemoryError
            self.data, self.held = data, held
        data = self.data + self.nbytes
        self.nbytes += nbytes
        return data

    cdef take(self):
        """The bytes, which are no more here."""
        taken = PyBytes_FromStringAndSize(self.data, self.nbytes)
        self.nbytes = 0
        if self.held > KEPT:
            PyMem_Free(self.data)
            self.data, self.held = NULL, 0
        return taken

    cdef int head(self, unsigned char small, unsigned int smallest, unsigned char first, bint has_byte, uint64_t count) except -1:
        """Write what stands before a text or a container: with its size in the first byte, or in 1, 2 or 4 more."""
        cdef char* at
        cdef int wide = 1 if has_byte and count < 1 << 8 else 2 if count < 1 << 16 else 4
        if count < smallest:
            self.grow(1)[0] = <char>(small | count)
            return 0
        at = self.grow(1 + wide)
        at[0] = <char>(first + (wide >> 1) - (not has_byte))
        big_endian(at + 1, count, wide)
        return 0

    cdef int number(self, unsigned char first, uint64_t number, int nbytes) except -1:
        cdef char* at = self.grow(1 + nbytes)
        at[0] = <char>first
        big_endian(at + 1, number, nbytes)
        return 0

    cdef bint leaf(self, object x) except -1:
        """Write a value that holds no others; False where it is none."""
        cdef Py_ssize_t nbytes
        cdef const char* data
        cdef double real
        cdef uint64_t bits
        cdef int64_t whole
        cdef int over = 0
        kind = type(x)
        if kind is str:
            if len(<str>x) > MOST:
                return False
            if not is_encodable(x):
                return False
            data = PyUnicode_AsUTF8AndSize(x, &nbytes)
            self.head(0xA0, 32, 0xD9, True, nbytes)
            memcpy(self.grow(nbytes), data, nbytes)
        elif kind is int:
            whole = PyLong_AsLongLongAndOverflow(x, &over)
            if over:
                return False
            if -32 <= whole < 128:
                self.grow(1)[0] = <char>whole
            elif whole >= 0:
                if whole < 1 << 8:
                    self.number(0xCC, whole, 1)
                elif whole < 1 << 16:
                    self.number(0xCD, whole, 2)
                elif whole < <int64_t>1 << 32:
                    self.number(0xCE, whole, 4)
                else:
                    self.number(0xCF, whole, 8)
            elif whole >= -(1 << 7):
                self.number(0xD0, whole, 1)
            elif whole >= -(1 << 15):
                self.number(0xD1, whole, 2)
            elif whole >= -(<int64_t>1 << 31):
                self.number(0xD2, whole, 4)
            else:
                self.number(0xD3, whole, 8)
        elif kind is float:
            real = PyFloat_AS_DOUBLE(x)
            memcpy(&bits, &real, 8)
            self.number(0xCB, bits, 8)
        elif x is None:
            self.grow(1)[0] = <char>0xC0
        elif x is True:
            self.grow(1)[0] = <char>0xC3
        elif x is False:
            self.grow(1)[0] = <char>0xC2
        elif kind is bytes:
            nbytes = PyBytes_GET_SIZE(x)
            if nbytes > MOST:
                return False
            self.head(0, 0, 0xC4, True, nbytes)
            memcpy(self.grow(nbytes), PyBytes_AS_STRING(x), nbytes)
        else:
            return False
        return True

    cdef bint value(self, object x, int* values, int* containers) except -1:
        """Write a value, if it is plain and small. Nothing that is called here runs Python code."""
        cdef Py_ssize_t at = 0, count
        cdef PyObject* key
        cdef PyObject* item
        kind = type(x)
        if kind is not list and kind is not dict:
            return self.leaf(x)
        count = PyList_GET_SIZE(x) if kind is list else PyDict_Size(x)
        values[0] -= <int>min(count, FEW + 1)
        containers[0] -= 1
        if values[0] < 0 or containers[0] < 0:
            return False
        if kind is list:
            self.head(0x90, 16, 0xDC, False, count)
            for at in range(count):
                if not self.value(<object>PyList_GET_ITEM(x, at), values, containers):
                    return False
        else:
            self.head(0x80, 16, 0xDE, False, count)
            while PyDict_Next(x, &at, &key, &item):
                if not (self.leaf(<object>key) and self.value(<object>item, values, containers)):
                    return False
        return True

    cdef bint write_plain(self, object x) except -1:
        """Write the encoding of a value behind what is there; False where it is not plain or not small, and
        nothing is written."""
        cdef size_t before = self.nbytes, size
        cdef int values = FEW - 1, containers = CONTAINERS - 1
        cdef bint written = False
        self.grow(HEADER)
        try:
            written = self.value(x, &values, &containers)
        finally:
            if not written:
                self.nbytes = before
        if written:
            size = self.nbytes - before - HEADER
            self.data[before] = FORMAT
            memcpy(self.data + before + 1, &size, 8)
        return written

    @staticmethod
    cdef object read(const char* data, size_t nbytes, bint* found):
        """The value whose encoding this is; None, and not found, where it is none of `write_plain`."""
        cdef reader r
        cdef uint64_t size
        found[0] = False
        if nbytes <= HEADER or nbytes > MOST_READ or data[0] != FORMAT:
            return None
        memcpy(&size, data + 1, 8)
        if size != nbytes - HEADER:
            return None
        r.at, r.end = <const unsigned char*>data + HEADER, <const unsigned char*>data + nbytes
        r.values, r.containers = 2 * FEW, CONTAINERS
        try:
            value = read_value(&r)
        except UnicodeDecodeError:
            return None
        if r.at != r.end or value is NOT:
            return None
        found[0] = True
        return value


cdef object read_value(reader* r):
    """The next value; `NOT` where what is there is none that `value` writes."""
    cdef unsigned char first
    cdef uint64_t size
    cdef int64_t whole
    cdef double real
    if r.at == r.end:
        return NOT
    first = r.at[0]
    r.at += 1
    if first < 0x80:
        return PyLong_FromLongLong(first)
    if first < 0x90:
        return read_dict(r, first & 0x0F)
    if first < 0xA0:
        return read_list(r, first & 0x0F)
    if first < 0xC0:
        return read_text(r, first & 0x1F, False)
    if first >= 0xE0:
        return PyLong_FromLongLong(<signed char>first)
    if first == 0xC0:
        return None
    if first == 0xC2:
        return False
    if first == 0xC3:
        return True
    if first == 0xCB:
        if not read_number(r, 8, &size):
            return NOT
        memcpy(&real, &size, 8)
        return PyFloat_FromDouble(real)
    if first >= 0xCC and first <= 0xCF:
        return PyLong_FromUnsignedLongLong(size) if read_number(r, 1 << (first - 0xCC), &size) else NOT
    if first >= 0xD0 and first <= 0xD3:
        if not read_number(r, 1 << (first - 0xD0), &size):
            return NOT
        if first == 0xD0:
            whole = <signed char>size
        elif first == 0xD1:
            whole = <int16_t>size
        elif first == 0xD2:
            whole = <int32_t>size
        else:
            whole = <int64_t>size
        return PyLong_FromLongLong(whole)
    if first >= 0xC4 and first <= 0xC6:
        return read_text(r, size, True) if read_number(r, 1 << (first - 0xC4), &size) else NOT
    if first >= 0xD9 and first <= 0xDB:
        return read_text(r, size, False) if read_number(r, 1 << (first - 0xD9), &size) else NOT
    if first == 0xDC:
        return read_list(r, size) if read_number(r, 2, &size) else NOT
    if first == 0xDE:
        return read_dict(r, size) if read_number(r, 2, &size) else NOT
    return NOT


cdef inline bint read_number(reader* r, int nbytes, uint64_t* number) noexcept nogil:
    """Read a big-endian number, if it is all there."""
    if r.end - r.at < nbytes:
        return False
    number[0] = number_of(r.at, nbytes)
    r.at += nbytes
    return True


cdef object read_text(reader* r, uint64_t nbytes, bint as_bytes):
    cdef const char* data = <const char*>r.at
    if nbytes > <uint64_t>(r.end - r.at):
        return NOT
    r.at += nbytes
    if as_bytes:
        return PyBytes_FromStringAndSize(data, nbytes)
    return PyUnicode_DecodeUTF8(data, nbytes, "surrogatepass")


cdef inline bint is_few(reader* r, uint64_t values) noexcept nogil:
    """Whether so many values in one more container may be there, and are few with all that came before."""
    if values > <uint64_t>r.values or values > <uint64_t>(r.end - r.at) or not r.containers:
        return False
    r.values -= <int>values
    r.containers -= 1
    return True


cdef object read_list(reader* r, uint64_t count):
    cdef uint64_t index
    cdef list items
    if not is_few(r, count):
        return NOT
    items = []
    for index in range(count):
        item = read_value(r)
        if item is NOT:
            return NOT
        items.append(item)
    return items


cdef object read_dict(reader* r, uint64_t count):
    cdef uint64_t index
    cdef dict items
    if count > FEW_KEYS or not is_few(r, 2 * count):
        return NOT
    items = {}
    for index in range(count):
        key = read_value(r)
        if key is NOT or type(key) is list or type(key) is dict:
            return NOT
        item = read_value(r)
        if item is NOT:
            return NOT
        PyDict_SetItem(items, key, item)
    return items


def encode_plain(x):
    cdef Room room = Room.__new__(Room)
    return room.take() if room.write_plain(x) else None


def decode_plain(data not None, unless):
    cdef Py_buffer held
    cdef bint found
    PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
    try:
        value = Room.read(<const char*>held.buf, held.len, &found)
    finally:
        PyBuffer_Release(&held)
    return value if found else unless
