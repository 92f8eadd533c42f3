# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
"""The way of small messages between ranks: see `messenger.pyi`."""

cimport cython
cimport numpy as np
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from aiodist._engine.handle cimport Driver, Handle, Site, new_handle
from aiodist._engine.ring cimport APPENDED, Consumer, Producer, consumer_first, consumer_is_waiting, consumer_took
from aiodist._engine.ring cimport producer_append
from aiodist._engine.slots cimport EndOfTurn, Memory, full_fence, relax, wake_loop, word_load

from contextvars import Context

np.import_array()

cdef extern from "numpy/arrayobject.h":
    int PyArray_CHKFLAGS(np.ndarray array, int flags)
    int NPY_ARRAY_CARRAY, NPY_ARRAY_CARRAY_RO

cdef extern from "clock.h":
    double monotonic_seconds() nogil

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "message.h":
    enum: FRAME_BYTES, SIGNATURE

    ctypedef struct frame:
        uint64_t context
        uint64_t seq
        uint32_t stream
        uint32_t nbytes
        uint64_t total
        unsigned char signature[32]

    bint is_message(const frame* f, uint32_t eager, uint64_t most)
    void number_frame(frame* f, uint64_t number)
    bint is_signed(const unsigned char* signature, const unsigned char* like, uint64_t number)

cdef extern from "Python.h":
    PyObject* PyWeakref_GetObject(object reference)
    object PyWeakref_NewRef(object of, PyObject* callback)
    unsigned long PyThread_get_thread_ident()

cdef extern from "fingerprint.h":
    const char* AIODIST_FINGERPRINT

FINGERPRINT = AIODIST_FINGERPRINT.decode()

cdef enum:
    AXES = 8  # most of an array that has a prepared call
    MOST_PREPARED = 1024  # calls of a group that are remembered, in each direction
    MOST_SIZES = 1024  # of messages of bytes, whose signatures are remembered
    ANY = -1
    NOBODY = -1
    FIRST_LOOKS = 16  # before the clock is looked at
    EAGER = 1  # as `net/wire/frame.py` and `transport/base.py` have these two
    MOST_EAGER = 8 * 1024


cdef class SendAccount:
    cdef public object link
    cdef public bint over, closing
    cdef public uint64_t budget, budgets, spent_all
    cdef public dict spent
    cdef public list offers


cdef class ReceiveAccount:
    cdef public object link, rank
    cdef public uint64_t budgets, batch, spent_all, owed_all
    cdef public dict owed
    cdef public set questions
    cdef public object takers


@cython.final
cdef class PreparedMessage(Site):
    cdef object call, channel, dtype, stream, key
    cdef int peer, ndim
    cdef int64_t tag
    cdef np.npy_intp dims[AXES]
    cdef uint32_t nbytes
    cdef bint sealed
    cdef frame header

    def __cinit__(self, call, sort, channel, bytes header not None, stream, int peer, int64_t tag, *, bint sealed):
        if len(header) != FRAME_BYTES or len(call.shape) > AXES:
            raise ValueError("no header of a frame, or too many axes")
        memcpy(&self.header, <const char*>header, FRAME_BYTES)
        self.call, self.sort, self.channel, self.stream = call, sort, channel, stream
        self.dtype, self.ndim = call.dtype, <int>len(call.shape)
        for index in range(self.ndim):
            self.dims[index] = call.shape[index]
        self.peer, self.tag, self.key, self.sealed = peer, tag, (peer, tag), sealed
        self.nbytes = self.header.nbytes

    cdef bint fits(self, np.ndarray array, int64_t tag) noexcept:
        return (
            self.tag == tag and <object>np.PyArray_DESCR(array) is self.dtype and np.PyArray_NDIM(array) == self.ndim
            and (self.ndim == 0 or memcmp(np.PyArray_DIMS(array), self.dims, self.ndim * sizeof(np.npy_intp)) == 0)
        )

    cdef note(self, object track, uint64_t number, double issued, int depth):
        """Write down that the operation was issued, and by which line: so many calls above this one."""
        self.find_line(track.line_of, depth)
        noted = (self.sort, number, self.line, issued)
        track.keep(noted)
        return noted


@cython.final
cdef class Receive(Driver):
    cdef readonly object work
    cdef readonly int source, got
    cdef readonly int64_t tag
    cdef readonly object target, convert, post
    cdef public object operation
    cdef readonly uint64_t number
    cdef readonly object place
    cdef object key  # in the table of the next numbers; None: of any source
    cdef PreparedMessage like  # None: of bytes
    cdef char* into
    cdef Inbox inbox
    cdef object channel  # from its source, where an await may poll it

    def __init__(self, Inbox inbox not None, work, int source, int64_t tag, np.ndarray target, PreparedMessage like,
                 convert, post):
        if (target is None) != (like is None) or (target is not None and (
            not PyArray_CHKFLAGS(target, NPY_ARRAY_CARRAY) or not like.fits(target, tag)
        )):
            raise ValueError("no array that a message like this fits")
        self.set_up(inbox, work, source, tag, target, like, convert, post)

    cdef int set_up(self, Inbox inbox, object work, int source, int64_t tag, np.ndarray target, PreparedMessage like,
                    object convert, object post) except -1:
        self.inbox, self.work, self.source, self.tag = inbox, work, source, tag
        self.target, self.like, self.convert, self.post = target, like, convert, post
        self.into = NULL if target is None else <char*>np.PyArray_DATA(target)  # held: it stays where it is
        self.got = NOBODY
        if source != ANY:
            self.key = (source, tag) if like is None else like.key
        return 0

    cdef bint takes(self, const unsigned char* signature, uint32_t nbytes, uint64_t number) except -1:
        """Whether a message of so many bytes is such as it receives."""
        if self.like is not None:
            return nbytes == self.like.nbytes and is_signed(signature, self.like.header.signature, number)
        return nbytes > 0 and is_signed(signature, self.inbox.signature_of(nbytes), number)

    def fits(self, bytes signature not None, uint32_t nbytes, uint64_t number):
        return len(signature) == SIGNATURE and self.takes(<const unsigned char*>signature, nbytes, number)

    def receive(self, int source, uint64_t number, data):
        if self.like is None:
            self.place = data if type(data) is bytes else bytes(data)
        else:
            self.copy(data)
        self.end(source, number)

    cdef int copy(self, data) except -1:
        cdef Py_buffer held
        PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
        try:
            if <uint64_t>held.len != self.like.nbytes:
                raise ValueError("a message of another size")
            memcpy(self.into, held.buf, held.len)
        finally:
            PyBuffer_Release(&held)
        return 0

    cdef int end(self, int source, uint64_t number) except -1:
        """End well: the message is where it belongs."""
        cdef object work = self.work
        self.got, self.number = source, number
        if self.like is None:
            # What decodes is no part of the awaiting task, and must not inherit its context.
            Context().run(self.inbox.complete, work, (source, self.place), self.convert)
            return 0
        self.place = self.target
        if isinstance(work, Handle):
            (<Handle>work).finish(source)
        else:
            work._finish(source)
        return 0

    cdef bint is_over(self) noexcept:
        return self.got != NOBODY or self.operation is not None

    # ── polling ──

    def poll(self):
        self.bring_on()

    cdef int bring_on(self) except -1:
        cdef Inbox inbox = self.inbox
        cdef Consumer ring
        cdef EndOfTurn turn = inbox.end_of_turn
        cdef int index, looks
        cdef double ends
        cdef bint found
        if self.is_over():
            return 0
        link = self.channel.link
        ring = None if link is None or turn is None else link.consumer
        if ring is None:
            if not inbox.poller.until(self.poll_once):
                self.work._driver = None
            return 0
        looks = turn.looks
        if ring.busy or not looks:
            inbox.hub.end_of_turn_soon()
            return 0
        for index in range(FIRST_LOOKS if looks > 1 else 1):
            if consumer_is_waiting(&ring.c):
                break
            relax()
        if consumer_is_waiting(&ring.c):
            self.take(ring, link)
            if self.is_over():
                return 0
        if not turn.polled:
            inbox.hub.awake()
        ends = turn.turn.start(turn.poll)
        try:
            while not self.is_over() and ring.c.word != NULL:
                found = False
                with nogil:
                    while True:
                        for index in range(looks):
                            found = consumer_is_waiting(&ring.c)
                            if found:
                                break
                            relax()
                        if found or monotonic_seconds() >= ends:
                            break
                        sched_yield()  # the peer may wait for this very core
                if not found:
                    break
                self.take(ring, link)
                if monotonic_seconds() >= ends:
                    break
        finally:
            turn.turn.stop()
        return 0

    cdef int take(self, Consumer ring, link) except -1:
        """Take what is in the ring: small messages here, others as the link has it."""
        deliver(ring, self.channel, <uint64_t>1 << 20)
        if not self.is_over() and consumer_is_waiting(&ring.c):
            self.inbox.poller.once(link.poll)
        return 0

    def poll_once(self):
        self.channel.poll()
        return self.is_over()


@cython.final
cdef class Inbox:
    cdef object messages, of_bytes, complete, poller, hub, handler
    cdef EndOfTurn end_of_turn  # None where no memory is shared
    cdef dict sources, waiting, next, awaited
    cdef list heard
    cdef dict signatures

    def __init__(self, messages, dict sources not None, of_bytes, complete, poller, hub):
        self.messages, self.sources, self.of_bytes, self.complete = messages, sources, of_bytes, complete
        self.poller, self.hub, self.handler = poller, hub, messages.take
        self.end_of_turn = None if hub is None else hub.end_of_turn
        self.waiting, self.next, self.awaited = messages.next_messages, messages.numbers, messages.awaited
        self.heard, self.signatures = messages.heard, {}

    def __call__(self, rank, stream, number, signature, data):
        return self.handler(rank, stream, number, signature, data)

    cdef const unsigned char* signature_of(self, uint32_t nbytes) except NULL:
        """The signature of a message of so many bytes, but for its number."""
        found = self.signatures.get(nbytes)
        if found is None:
            if len(self.signatures) >= MOST_SIZES:
                self.signatures.clear()
            found = self.of_bytes(nbytes, 0)
            if len(found) != SIGNATURE:
                raise ValueError("no signature")
            self.signatures[nbytes] = found
        return <const unsigned char*>PyBytes_AS_STRING(found)

    cdef Receive find(self, rank, const frame* head):
        """The receive that waits for a message, if it is the next of its source and tag and fits; else None."""
        cdef Receive receive
        if self.awaited or self.messages.dead:
            return None
        source = self.sources.get(rank)
        if source is None:
            return None
        found = self.waiting.get(<int64_t>head.stream - 1)
        if found is None:
            return None
        receive = found
        if receive.source != ANY and receive.source != <int>source:
            return None
        key = receive.key if receive.source != ANY else (source, receive.tag)
        if <uint64_t>self.next.get(key, 0) != head.seq or not receive.takes(head.signature, head.nbytes, head.seq):
            return None
        return receive

    cdef int matched(self, Receive receive, int source, uint64_t number) except -1:
        """Note that a receive got the next message of its source and tag."""
        key = receive.key if receive.source != ANY else (source, receive.tag)
        del self.waiting[receive.tag]
        self.next[key] = number + 1
        self.heard[source] += 1
        return 0


def deliver(Consumer ring not None, ReceiveAccount channel not None, uint64_t most):
    cdef const char* record
    cdef uint64_t nbytes = 0, moved = 0, size, owed
    cdef frame head
    cdef Receive receive
    cdef Inbox inbox
    cdef int source
    if ring.busy or channel.questions:
        return 0
    try:
        while moved < most and consumer_is_waiting(&ring.c):
            record = consumer_first(&ring.c, &nbytes)
            if record == NULL or nbytes < FRAME_BYTES:
                break
            memcpy(&head, record, FRAME_BYTES)  # its writer could change it meanwhile
            size = FRAME_BYTES + <uint64_t>head.nbytes
            if size > nbytes or not is_message(&head, EAGER, MOST_EAGER):
                break
            taker = channel.takers.get(head.context)
            if type(taker) is not Inbox:
                break
            if channel.spent_all + size > channel.budgets:
                break
            inbox = taker
            receive = inbox.find(channel.rank, &head)
            if receive is None:
                break
            source = inbox.sources[channel.rank]
            if receive.into != NULL:
                memcpy(receive.into, record + FRAME_BYTES, head.nbytes)
            else:
                receive.place = PyBytes_FromStringAndSize(record + FRAME_BYTES, head.nbytes)
            inbox.matched(receive, source, head.seq)
            consumer_took(&ring.c, size)
            # As `transport/receiving.py` counts what has come, and was received at once.
            channel.spent_all += size
            owed = <uint64_t>channel.owed.get(head.context, 0) + size
            channel.owed[head.context] = owed
            channel.owed_all += size
            moved += size
            receive.end(source, head.seq)
            if owed >= channel.batch or channel.owed_all * 4 >= channel.budgets:
                channel.return_credit(head.context)
    finally:  # also where what decodes a message is interrupted
        if moved and ring.c.waits != NULL:
            full_fence()
            if word_load(ring.c.waits):
                channel.link.tell_room()
    return moved


@cython.final
cdef class Messenger:
    cdef object prepare, prepare_bytes, issuer, track, messages, runs, work, hold, begin, abandon, is_behind
    cdef object receive_here, gone, poller, hub, context
    cdef set shut, crowded
    cdef dict queues, arrivals, unowned, untold, held
    cdef EndOfTurn end_of_turn
    cdef Inbox inbox
    cdef unsigned long thread
    cdef int rank, size
    cdef dict counts, sends, receives, of_bytes
    cdef list last_sends, last_receives, sent
    cdef list peers  # by group rank: the memory of a local one

    def __init__(self, Inbox inbox not None, messages, channels, issuer, dict counts not None, work, prepare,
                 prepare_bytes, hold, begin, gone, list peers not None):
        self.inbox, self.messages, self.issuer, self.counts, self.work = inbox, messages, issuer, counts, work
        self.prepare, self.prepare_bytes, self.hold, self.begin, self.gone = prepare, prepare_bytes, hold, begin, gone
        self.peers, self.end_of_turn = peers, inbox.end_of_turn
        self.track, self.thread, self.runs = issuer.track, issuer.thread, issuer.running
        self.abandon, self.is_behind = messages.abandon, messages.held_up.is_behind
        self.receive_here = messages.receive_here
        self.queues, self.arrivals, self.unowned = messages.queues, messages.arrivals, messages.unowned_counts
        self.untold, self.held = messages.held_up.untold, messages.held_up.held
        self.sent, self.shut, self.crowded = messages.sent, channels.shut, channels.crowded
        self.context, self.rank, self.size = channels.context, channels.rank, channels.size
        self.poller, self.hub = inbox.poller, inbox.hub
        self.sends, self.receives, self.of_bytes = {}, {}, {}
        self.last_sends, self.last_receives = [None] * self.size, [None] * self.size
        if len(peers) != self.size:
            raise ValueError("one memory or None for each member")

    cdef inline bint is_here(self) except -1:
        return PyThread_get_thread_ident() == self.thread and self.runs()

    cdef PreparedMessage find(self, bint sends, np.ndarray array, peer, tag):
        """The prepared call of a call like this one; None: it is no case for this."""
        cdef PreparedMessage like
        cdef dict known
        cdef list last
        cdef long rank, number
        try:
            rank, number = peer, tag
        except OverflowError:
            return None
        if not 0 <= rank < self.size or not 0 <= number < <long>1 << 31:
            return None
        last = self.last_sends if sends else self.last_receives
        like = last[rank]
        if like is not None and like.fits(array, <int>number):
            return like
        known = self.sends if sends else self.receives
        key = (array.dtype, (<object>array).shape, peer, tag)
        found = known.get(key, self)
        if found is self:
            if len(known) >= MOST_PREPARED:
                known.clear()
            found = known[key] = self.prepare(sends, array, peer, tag)
        like = found
        if like is not None:
            like.dtype = <object>np.PyArray_DESCR(array)
            last[rank] = like
        return like

    cdef PreparedMessage find_bytes(self, bint sends, peer, tag):
        """What messages of bytes share, of any number."""
        key = (sends, peer, tag)
        found = self.of_bytes.get(key)
        if found is None:
            if len(self.of_bytes) >= MOST_PREPARED:
                self.of_bytes.clear()
            found = self.of_bytes[key] = self.prepare_bytes(sends, peer, tag)
        return found

    # ── sending ──

    def send(self, tensor, dst, tag, bint held):
        cdef PreparedMessage like
        cdef np.ndarray array
        if type(tensor) is not np.ndarray or type(dst) is not int or type(tag) is not int:
            return None  # before it is asked anything
        array = tensor
        like = self.find(True, array, dst, tag)
        if like is None or not PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY_RO) or not self.is_here():
            return None
        return self.leave(like, <const char*>np.PyArray_DATA(array), held, 1)

    def send_bytes(self, bytes data not None, int dst, tag, bint held, int depth=1):
        cdef PreparedMessage like
        if not 0 < len(data) <= MOST_EAGER or not self.is_here():
            return None
        like = self.find_bytes(True, dst, tag)
        like.nbytes = like.header.nbytes = <uint32_t>len(data)
        like.header.total = like.nbytes
        memcpy(like.header.signature, self.inbox.signature_of(like.nbytes), SIGNATURE)
        return self.leave(like, <const char*>data, held, depth)

    cdef leave(self, PreparedMessage like, const char* data, bint held, int depth):
        """Have a message leave, if it can at once; else None, and nothing has happened."""
        cdef uint64_t size = FRAME_BYTES + <uint64_t>like.nbytes, spent, spent_all, number
        cdef Producer ring
        cdef Handle work
        cdef Memory memory
        cdef double issued
        cdef SendAccount channel = like.channel
        link = channel.link
        if link is None or channel.over or channel.closing or self.messages.dead or like.peer in self.shut:
            return None
        spent, spent_all = <uint64_t>channel.spent.get(self.context, 0) + size, channel.spent_all + size
        if spent > channel.budget or spent_all > channel.budgets:
            return None
        number = self.counts.get(like.stream, 0)
        self.counts[like.stream] = number + 1
        self.sent[like.peer] += 1
        issued = monotonic_seconds()  # before the receiver notes its end; the rest costs no time while it is awaited
        number_frame(&like.header, number)
        ring = link.producer
        if ring is not None and ring.clear and not channel.offers and producer_append(
            &ring.c, &like.header, FRAME_BYTES, data, like.nbytes
        ) == APPENDED:
            channel.spent[self.context], channel.spent_all = spent, spent_all
            memory = self.peers[like.peer]
            if memory is not None and memory.c.words != NULL:
                wake_loop(&memory.c)
            if self.end_of_turn is not None and not self.end_of_turn.due:
                self.hub.end_of_turn_soon()  # which looks again, with a fence
        else:
            header = PyBytes_FromStringAndSize(<const char*>&like.header, FRAME_BYTES)
            payload = memoryview(PyBytes_FromStringAndSize(data, like.nbytes))
            channel.send_eager(header, self.context, payload, like.sealed)
        noted = like.note(self.track, number, issued, depth)
        work = new_handle(self.work, self.issuer, like.call, held, None, None, number, noted)
        work.finish(None)
        return work

    # ── receiving ──

    def recv(self, tensor, src, tag, bint held):
        cdef PreparedMessage like
        cdef np.ndarray array
        cdef Receive receive
        if type(tensor) is not np.ndarray or type(src) is not int or type(tag) is not int:
            return None
        array = tensor
        like = self.find(False, array, src, tag)
        if like is None or not PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY) or not self.is_here():
            return None
        return self.wait(like, array, like, like.peer, held, None, 1)

    def recv_bytes(self, int src, tag, bint held, convert, int depth=1):
        if not self.is_here():
            return None
        return self.wait(self.find_bytes(False, src, tag), None, None, src, held, convert, depth)

    cdef bint is_first(self, Handle work, object tag, object source) except -1:
        """Note a receive that begins now, if it is one of a row: the last of its tag and source was the only one,
        and its result is known. Else nothing has happened: `HeldUp.is_behind` says whether it has to wait."""
        cdef PyObject* before
        by_source = self.untold.get(tag)
        if by_source is None or len(<dict>by_source) != 1 or self.held:
            return False
        row = (<dict>by_source).get(source)
        if row is None or len(row) != 1:
            return False
        before = PyWeakref_GetObject(row[0])
        if before == NULL or (<object>before is not None and (<Handle>before)._take_back is not None):
            return False
        row[0] = PyWeakref_NewRef(work, NULL)
        return True

    cdef bint nothing_waits(self, tag) except -1:
        """`Messages.nothing_waits`."""
        return not (
            tag in self.inbox.waiting or tag in self.arrivals or tag in self.queues or self.unowned or self.held
            or self.messages.dead
        )

    cdef wait(self, PreparedMessage like, np.ndarray target, PreparedMessage fitting, int source, bint held, convert,
              int depth):
        """Have a receive get its message: the one that is here, or the next."""
        cdef Receive receive = Receive.__new__(Receive)
        cdef Handle work
        cdef uint64_t number = self.counts.get(like.stream, 0)
        self.counts[like.stream] = number + 1
        noted = like.note(self.track, number, monotonic_seconds(), depth)
        work = new_handle(self.work, self.issuer, like.call, held, None, None, number, noted)
        receive.set_up(self.inbox, work, source, like.tag, target, fitting, convert, self.begin)
        if not self.is_first(work, like.tag, source) and self.is_behind(work, like.tag, source):
            self.hold(receive)
        elif self.nothing_waits(like.tag) and not (self.gone or self.crowded):
            if work._unheld:
                work._take_back = self.abandon, receive
            if like.channel is not None and self.poller.polls and source != self.rank:
                receive.channel = like.channel
                work._driver = receive
            self.inbox.waiting[like.tag] = receive
        elif self.receive_here(receive):
            if work._unheld:
                work._take_back = self.abandon, receive
        else:
            self.begin(receive)
        return work
