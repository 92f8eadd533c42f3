"""Python objects as bytes, for the object collectives: msgpack, NumPy arrays beside it, no pickle unasked.

    encoding    u8 format, u64 little-endian size of the structure, the structure, blobs
    structure   one msgpack value
    blobs       the bytes of its arrays (and of what was pickled), in the order in which it names them

What travels keeps its exact type: None, bool, int of any size, float, complex, str, bytes, list, tuple, set,
frozenset, dict and OrderedDict with any hashable keys of these, date, datetime, timedelta, NumPy scalars and
arrays of the dtypes in `types.DTYPES`, and dense torch tensors on the CPU. A subclass of one of these is
another type. Arrays arrive writable, in C order and with memory of their own; tensors arrive as tensors where
torch can be imported, else as arrays, and without their gradients. What an object holds twice arrives twice:
so what an object adds by this is bounded (`net/wire/repeats`), and one that holds itself is refused.

Leaves that msgpack has no type for are extensions with a payload. Containers that it has no type for are
arrays whose first element is an empty extension, the mark: so the decoder needs one flat pass and no
recursion, however the bytes are nested. Arrays are in native byte order (the handshake refuses a mixed job).

These bytes come from members of the job. Still nothing in them is trusted: sizes are checked before
anything is allocated, keys before they are put into a table, and nothing is unpickled unless the receiver has
said so.
"""

from __future__ import annotations

import enum
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection
from datetime import date, datetime, timedelta, timezone
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import numpy as np

from aiodist import _engine
from aiodist.base.errors import AiodistError, UsageError, WireError, shown
from aiodist.base.sanitize import one_line
from aiodist.base.types import BFLOAT16, DTYPE_CODES, DTYPES
from aiodist.net.wire.bounded import SHORT, unpack
from aiodist.net.wire.repeats import CONTAINER, FREE_BYTES, FREE_TIME, TEXT, Account, Repeated

_compiled = _engine.compiled  # its `plain` writes and reads small plain values as this file does
_OTHER = object()

UNLESS_PICKLED = (
    "Convert it to plain types or arrays; or pass allow_pickle=True on both sides, "
    "if all ranks trust each other"
)
"""The hint for what cannot be sent as data."""

LARGE = 1 << 20
"""Bytes from which on encoding and decoding are work for a thread."""

FORMAT = 1
MAX_DEPTH = 100  # containers inside containers
MAX_ALIKE = 100  # keys of a dict or set that share a hash value, on average: each is compared with the others
MAX_AXES = 64  # NumPy's most; to multiply a million extents would take minutes
_FEW_BYTES = 2 << 10  # nothing in them takes more than 2 ms
_MANY_BYTES = 64 << 10  # as numbers, or members of a set, they take some ms
_KEYS_BYTES = 16 << 10  # as keys of a dict they do
_LONG = 1 << 10  # bytes of a text that costs next to nothing
_LOOKED_AT = 32  # values among which long texts are looked for
_HEAD = struct.Struct("<BQ")
_HEADER = _HEAD.size
_COMPLEX = struct.Struct("<dd")
_ARRAY = struct.Struct("<BB")  # dtype, flags; the shape follows, u64 each
_BLOB = struct.Struct("<Q")  # bytes of a pickle; its type's name follows
_TORCH = 1  # flag: it was a torch tensor
_MICROSECOND = timedelta(microseconds=1)


class _Ext(enum.IntEnum):
    """Codes of the extensions. Part of the protocol: append, never renumber."""

    integer = 1
    complex = 2
    scalar = 3
    array = 4
    pickled = 5
    tuple = 16  # marks from here on
    set = 17
    frozenset = 18
    ordered = 19
    date = 20
    datetime = 21
    timedelta = 22


Apart = Callable[[Any], "dict[str, Any] | None"]
"""What takes an object apart that cannot be sent as it is: the dict to send in its place, or None."""


def encode(obj: Any, *, allow_pickle: bool = False, apart: Apart | None = None) -> bytes:
    """An object as bytes. Arrays in C order are copied once, others twice.

    Args:
        obj: what to send; see the module for what can be.
        allow_pickle: pickle what cannot be sent as data. The receivers have to allow it, too.
        apart: takes objects of other types apart; not those that must have a hash value here.

    Raises:
        UsageError: something in it cannot be sent, contains itself, or is held far too often; says what and
            where.
    """
    if _compiled is not None and (plain := _compiled.encode_plain(obj)) is not None:
        return plain
    try:
        if _are_usual((obj,), set(), [_AGAIN, _LONG_BYTES], 0):
            return _packed(obj)
        encoder = _Encoder(allow_pickle, apart)
        encoder.value(obj, 0)
        structure = encoder.packer.getbuffer()
        return b"".join([_HEAD.pack(FORMAT, structure.nbytes), structure, *encoder.blobs])
    except _Refused as refused:
        raise UsageError(f"{refused.where()} {refused.problem}", hint=refused.hint) from refused.__cause__
    except ValueError as error:  # msgpack: a string of over 4 GiB
        raise UsageError(f"the object cannot be sent ({error})", hint="Put large data into arrays") from None
    except MemoryError:
        raise UsageError("there is no memory for the object as bytes", hint="Send it in parts") from None
    except RecursionError:
        raise UsageError(
            "the object cannot be sent from here: it is nested too deep for the present depth of calls",
            hint="Send it from a function that fewer others have called",
        ) from None


def decode(data: bytes | bytearray | memoryview, *, allow_pickle: bool = False) -> Any:
    """The object that `encode` made bytes of.

    Args:
        data: contiguous; not needed afterwards.
        allow_pickle: unpickle what was pickled. This runs code that the sender chose: only among ranks that
            trust each other.

    Raises:
        UsageError: part of it was pickled, and this rank does not allow it.
        WireError: these are not bytes of `encode`, or what was pickled cannot be unpickled here.
    """
    if _compiled is not None and (value := _compiled.decode_plain(data, _OTHER)) is not _OTHER:
        return value
    try:
        if _HEADER < len(data) <= SHORT:
            form, size = _HEAD.unpack_from(data)
            if form == FORMAT and size == len(data) - _HEADER:
                plain = bytes(data[_HEADER:])
                if len(plain.translate(None, _EXTENSIONS)) == size:
                    return _unpack_plain(plain)
        return _Decoder(memoryview(data), allow_pickle).decode()
    except AiodistError:
        raise
    except Exception as error:  # whatever nonsense provokes in msgpack, NumPy or a constructor
        words = one_line(str(error), 100)
        raise WireError(f"an object that cannot be read ({type(error).__name__}: {words})") from error


def is_slow(data: bytes | bytearray | memoryview) -> bool:
    """Whether `decode` takes more than some ms: the bytes are many, or many of them may begin an extension or
    a container, for each of which Python is called."""
    if len(data) >= LARGE:
        return True
    if len(data) <= _FEW_BYTES:
        return False
    _, size = _HEAD.unpack_from(data)
    structure = memoryview(data)[_HEADER : _HEADER + size]
    if len(structure) <= _FEW_BYTES:
        return False
    parts = _without_long_texts(structure)
    kinds = b"".join(parts).translate(_KINDS)
    if len(kinds) > (_KEYS_BYTES if b"k" in kinds else _MANY_BYTES):
        return True
    known = _LIST_COST * kinds.count(b"l") + _DICT_COST * (kinds.count(b"d") + kinds.count(b"k"))
    room = _BEARABLE - known
    return room < 0 or (_EXTENSION_COST * kinds.count(b"e") > room < _EXTENSION_COST * _extensions(parts))


# Some bytes that seem to begin something are inside of a text or a number: this is rather too much than too
# little.
_BEARABLE = 2_000_000  # nanoseconds
_EXTENSION_COST = 5000  # nanoseconds, about: of an array; a scalar takes less, a tensor more
_LIST_COST, _DICT_COST = 250, 1000  # likewise; a dict of 15 takes more

# What a byte may begin: a list, a small dict, one with any number of keys, an extension.
_KINDS = bytes(0x80) + b"d" * 16 + b"l" * 16 + bytes(0x27) + b"eee" + bytes(10) + b"eeeee"
_KINDS += bytes(3) + b"llkk" + bytes(0x20)


def _extensions(parts: list[memoryview]) -> int:
    """How many extensions there are at most."""
    count = 0
    for part in parts:
        x = np.frombuffer(part, np.uint8)
        firsts = ((x - 0xD4 < 5, 1), (x == 0xC7, 2), (x == 0xC8, 3), (x == 0xC9, 5))
        for is_first, behind in firsts:  # so many bytes behind the first is the code
            count += int(np.count_nonzero(_IS_CODE[x[behind:][is_first[:-behind]]]))
    return count


_IS_CODE = np.zeros(256, np.bool_)  # another code is an error, behind which nothing is read
_IS_CODE[list(_Ext)] = True

_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of a text's size
_NUMBER = {0xCA: 4, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCB: 8, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_SKIPPED = {
    **_NUMBER,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}  # bytes behind the first; of containers' counts, too


def _without_long_texts(structure: memoryview) -> list[memoryview]:
    """A structure without the long texts, and bytes, among its first values: any bytes may be in them. What
    is inside of containers is a value, too."""
    parts, begin, at = [], 0, 0
    for _ in range(_LOOKED_AT):
        if at >= len(structure):
            break
        first = structure[at]
        at += 1
        wide = _SIZES.get(first, 0)
        if wide:
            length = int.from_bytes(structure[at : at + wide], "big")
            at += wide
            if length >= _LONG:
                parts.append(structure[begin:at])
                begin = at + length
            at += length
        elif 0xA0 <= first < 0xC0:
            at += first - 0xA0
        elif first in _EXTENSIONS:
            break  # what follows is counted
        else:
            at += _SKIPPED.get(first, 0)
    parts.append(structure[begin:])
    return [part for part in parts if len(part) > 8]


class _Refused(Exception):
    """A part that cannot be sent. Its path grows from the inside out while this passes the containers."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.steps: list[str] = []

    def where(self) -> str:
        """The path of the part: "obj['model'][3]"."""
        steps = self.steps[::-1]
        if len(steps) > 12:
            steps = [*steps[:6], "…", *steps[-6:]]
        return "obj" + "".join(steps)


def _large_integer(value: int) -> msgpack.ExtType:
    """The extension for an integer of over 64 bits, where msgpack asks."""
    return msgpack.ExtType(_Ext.integer, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


_NUMBERS = frozenset({type(None), bool, int, float})
_PLAIN = _NUMBERS | {str, bytes}
_SCALARS = frozenset(dtype.type for dtype in DTYPES)
_MARKED = {
    kind: msgpack.ExtType(code, b"")
    for kind, code in ((tuple, _Ext.tuple), (set, _Ext.set), (frozenset, _Ext.frozenset))
}
_HOLDERS = frozenset({list, dict, *_MARKED})
_MANY = 16  # items, from which on their types are gone through at C speed
_DEEP = 32  # containers inside containers, in what is usual
_AGAIN = FREE_TIME // (2 * CONTAINER)
"""Items that a value may hold again, one that is usual: writing them takes less than any object may take."""

_LONG_BYTES = FREE_BYTES // 2
"""Bytes of its long texts and of its arrays, likewise; short texts add less than as many."""


def _are_usual(items: Collection[Any], seen: set[int], room: list[int], depth: int) -> bool:
    """Whether msgpack can write values by itself, at C speed, with `_stand_in` for what it has no types for.
    Most objects are such. What may have to be refused is not: it is written with an account.

    Args:
        items: the values.
        seen: ids of the containers that were met.
        room: what is left of `_AGAIN` and of `_LONG_BYTES`.
        depth: containers around them.
    """
    if len(items) > _MANY and _NUMBERS.issuperset(map(type, items)):
        return True
    for item in items:
        kind = type(item)
        if kind is str or kind is bytes:
            if len(item) >= TEXT:
                room[1] -= len(item)
                if room[1] < 0:
                    return False
        elif kind in _NUMBERS:
            continue
        elif kind in _HOLDERS:
            if id(item) in seen:
                room[0] -= 1 + len(item)
            seen.add(id(item))
            if room[0] < 0 or depth == _DEEP:
                return False
            if kind is dict:
                for key in item:
                    kind = type(key)
                    if kind is str or kind is bytes:
                        if len(key) >= TEXT:
                            return False
                    elif kind not in _NUMBERS and not _are_usual((key,), seen, room, depth + 1):
                        return False
                item = item.values()
            if not _are_usual(item, seen, room, depth + 1):
                return False
        elif kind is np.ndarray:
            room[1] -= item.nbytes
            if room[1] < 0 or item.dtype not in DTYPE_CODES:
                return False
        elif kind not in _SCALARS or item.dtype not in DTYPE_CODES:
            return False
    return True


_SMALL = 16 << 10  # bytes of a text, of bytes
_FEW = 256  # items
_CONTAINERS = 64  # fewer than `MAX_DEPTH`: they may stand in each other


def encode_small(x: Any) -> bytes | None:
    """A small plain value as `encode` has it; None for every other, which may be encodable all the same."""
    if _compiled is not None:
        return _compiled.encode_plain(x)
    return _packed(x) if _is_small(x) else None


def _is_small(x: Any) -> bool:
    """Whether a value is plain, and takes no time worth a thread. One loop: calls pass here twice."""
    room = _FEW
    containers: list[Any] = [(x,)]
    for items in containers:
        room -= len(items)
        if room < 0:
            return False
        if type(items) is dict:
            for key in items:
                kind = type(key)
                if kind is str or kind is bytes:
                    if len(key) > _SMALL:
                        return False
                elif kind not in _NUMBERS:
                    return False
            items = items.values()
        for item in items:
            kind = type(item)
            if kind is str or kind is bytes:
                if len(item) > _SMALL:
                    return False
            elif kind is list or kind is dict:
                if len(containers) == _CONTAINERS:
                    return False
                containers.append(item)
            elif kind not in _NUMBERS:
                return False
    return True


_KEPT = 64 * 1024  # bytes of room that a packer may have that is kept
_packers: list[tuple[Callable[[Any], bytes], list[Any]]] = []  # one at most, that nobody uses now


def _packed(x: Any) -> bytes:
    """The encoding of a usual value. While one packs, another thread may, or a finalizer: each has a packer
    alone, with a list of the blobs that it leaves for the end."""
    try:
        pack, blobs = _packers.pop()
    except IndexError:
        blobs = []
        pack = msgpack.Packer(
            default=partial(_stand_in, blobs), strict_types=True, unicode_errors="surrogatepass"
        ).pack
    structure = pack(x)
    encoding = _HEAD.pack(FORMAT, len(structure)) + structure
    if blobs:
        encoding = b"".join([encoding, *blobs])
        blobs.clear()
    if len(structure) <= _KEPT and not _packers:
        _packers.append((pack, blobs))
    return encoding


def _stand_in(blobs: list[Any], x: Any) -> Any:
    """The stand-in that msgpack writes for a usual value that it has no type for.

    Args:
        blobs: takes the bytes of an array.
    """
    kind = type(x)
    mark = _MARKED.get(kind)
    if mark is not None:
        return [mark, *x]
    if kind is np.ndarray:
        if x.size:
            blobs.append(_bytes_of(x))
        return msgpack.ExtType(_Ext.array, _described(x, 0))
    return _large_integer(x) if kind is int else msgpack.ExtType(_Ext.scalar, _scalar(x))


def _described(x: np.ndarray[Any, Any], flags: int) -> bytes:
    """An array's description."""
    return _ARRAY.pack(DTYPE_CODES[x.dtype], flags) + struct.pack(f"<{x.ndim}Q", *x.shape)


def _bytes_of(x: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of an array that has some, in C order."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


def _scalar(x: Any) -> bytes:
    """A NumPy scalar: its dtype and its bytes."""
    return bytes([DTYPE_CODES[x.dtype]]) + bytes(x.tobytes())


_Write = Callable[["_Encoder", Any, int], None]


class _Encoder:
    """A writer of one structure, which collects its blobs."""

    def __init__(self, allow_pickle: bool, apart: Apart | None) -> None:
        self.packer = msgpack.Packer(
            default=_large_integer, strict_types=True, autoreset=False, unicode_errors="surrogatepass"
        )
        self.blobs: list[Any] = []
        self._allow_pickle = allow_pickle
        self._apart = apart
        self._account = Account()
        self._pickled: dict[int, bytes] = {}  # by the id of what was pickled

    def value(self, x: Any, depth: int) -> None:
        """Write anything. `_Refused` if it cannot be."""
        kind = type(x)
        if kind in _PLAIN:
            if kind is str or kind is bytes:
                self._charge(self._account.text, x)
            self.packer.pack(x)
            return
        if depth > MAX_DEPTH:
            raise _Refused(f"is nested over {MAX_DEPTH} deep", "Does it contain itself?")
        write = _WRITERS.get(kind)
        if write is not None:
            self.container(write, x, x, depth)
        elif kind is np.ndarray:
            self.array(x)
        elif isinstance(x, np.generic) and kind is x.dtype.type and x.dtype in DTYPE_CODES:
            self.leaf(_Ext.scalar, _scalar(x))
        elif kind is _torch_tensor():
            self.tensor(x)
        elif self._apart is not None and (parts := self._apart(x)) is not None:
            self.container(_Encoder.plain_mapping, x, parts, depth)
        else:
            self.pickle(x, f"is of type {_name(kind)}")

    def container(self, write: _Write, x: Any, parts: Any, depth: int) -> None:
        """Write a container, and enter it in the account.

        Args:
            write: writes it.
            x: the container.
            parts: what is written in its place; mostly itself.
        """
        key = id(x)
        outer = self._charge(self._account.enter, key)
        write(self, parts, depth + 1)
        self._account.leave(key, outer)

    def _charge(self, add: Callable[..., Any], *what: Any) -> Any:
        """Enter a cost in the account."""
        try:
            return add(*what)
        except Repeated as found:
            raise _Refused(str(found), _ONCE) from None

    def leaf(self, code: _Ext, payload: bytes) -> None:
        """Write an extension."""
        self.packer.pack_ext_type(code, payload)

    def sequence(self, items: list[Any], depth: int) -> None:
        """Write a list; at C speed where it holds no containers."""
        if self.plain(items):
            self.packer.pack(items)
        else:
            self.packer.pack_array_header(len(items))
            self.items(items, depth)

    def plain_mapping(self, items: dict[Any, Any], depth: int) -> None:
        """Write a dict, likewise."""
        if self.plain(items) and self.plain(items.values()):
            self.packer.pack(items)
        else:
            self.mapping(items, depth)

    def plain(self, items: Collection[Any]) -> bool:
        """Whether all items are plain leaves. They are in the account then."""
        kinds = set(map(type, items))
        if not kinds <= _PLAIN:
            return False
        self._charge(self._account.leaves, items, kinds)
        return True

    def mapping(self, items: dict[Any, Any], depth: int) -> None:
        """Write a dict whose keys or values are not plain."""
        self.packer.pack_map_header(len(items))
        self._charge(self._account.mixed, 2 * len(items))
        step, key = "", None
        try:
            for key, value in items.items():
                step = " key "
                self.hashed(key, depth)
                step = ""
                self.value(value, depth)
        except _Refused as refused:
            refused.steps.append(f"{step}[{_key(key)[:40]}]")
            raise

    def hashed(self, x: Any, depth: int) -> None:
        """Write what must have a hash value where it arrives: nothing in it is taken apart, into a dict."""
        apart, self._apart = self._apart, None
        self.value(x, depth)
        self._apart = apart

    def items(self, items: Collection[Any], depth: int) -> None:
        """Write the elements of a container."""
        if self.plain(items):
            for item in items:
                self.packer.pack(item)
            return
        self._charge(self._account.mixed, len(items))
        index = 0
        try:
            for index, item in enumerate(items):  # noqa: B007 - the handler reads it
                self.value(item, depth)
        except _Refused as refused:
            refused.steps.append(f"[{index}]")
            raise

    def marked(self, code: _Ext, items: tuple[Any, ...] | set[Any] | frozenset[Any], depth: int) -> None:
        """Write a container that msgpack does not know."""
        self.packer.pack_array_header(1 + len(items))
        self.leaf(code, b"")
        self.items(items, depth)

    def members(self, code: _Ext, items: set[Any] | frozenset[Any], depth: int) -> None:
        """Write a set."""
        apart, self._apart = self._apart, None
        self.marked(code, items, depth)
        self._apart = apart

    def datetime(self, x: datetime, depth: int) -> None:
        """Write a datetime: naive, with a fixed offset, or in a named zone."""
        zone: Any = x.tzinfo
        if type(zone) is timezone:
            zone = zone.utcoffset(None) // _MICROSECOND
        elif type(zone) is ZoneInfo:
            zone = zone.key
        elif zone is not None:
            self.pickle(x, f"is a datetime with a tzinfo of type {_name(type(zone))}")
            return
        if zone is None and x.tzinfo is not None:
            self.pickle(x, "is a datetime in a zone without a name")
            return
        self.marked(_Ext.datetime, (x.replace(tzinfo=None, fold=0).isoformat(), x.fold, zone), depth)

    def array(self, x: np.ndarray[Any, Any]) -> None:
        """Write an array."""
        if x.dtype in DTYPE_CODES:
            self._charge(self._account.large, id(x), x.nbytes, _held(x))
            self.blob(x, 0)
        else:
            self.pickle(x, f"is an array of dtype {x.dtype}")

    def tensor(self, x: Any) -> None:
        """Write a torch tensor."""
        torch = sys.modules["torch"]
        array = None
        if x.device.type == "cpu" and x.layout is torch.strided:
            dense = x.detach().resolve_conj().resolve_neg()
            try:
                if dense.dtype is torch.bfloat16:
                    array = dense.view(torch.int16).numpy().view(BFLOAT16)
                else:
                    array = dense.numpy()
            except (TypeError, RuntimeError):  # NumPy has no such dtype; a quantized tensor
                pass
        if array is not None and array.dtype in DTYPE_CODES:
            self._charge(self._account.large, id(x), array.nbytes, _held(array))
            self.blob(array, _TORCH)
        else:
            self.pickle(x, f"is a torch tensor ({x.dtype}, {x.layout}, on {x.device})")

    def blob(self, x: np.ndarray[Any, Any], flags: int) -> None:
        """Write an array's description, and leave its bytes for the end."""
        self.leaf(_Ext.array, _described(x, flags))
        if x.size:
            self.blobs.append(_bytes_of(x))

    def pickle(self, x: Any, problem: str) -> None:
        """Write what is no data, if that is allowed."""
        if not self._allow_pickle:
            raise _Refused(f"{problem}, which cannot be sent as data", UNLESS_PICKLED)
        import pickle

        blob = self._pickled.get(id(x))
        try:
            if blob is None:
                blob = self._pickled[id(x)] = pickle.dumps(x, protocol=5)
        except Exception as error:
            raise _Refused(
                f"{problem}, which cannot be pickled ({type(error).__name__}: {error!s:.100})",
                "Convert it to plain types or arrays",
            ) from error
        self._charge(self._account.large, id(x), len(blob), len(blob))
        self.leaf(_Ext.pickled, _BLOB.pack(len(blob)) + _name(type(x)).encode(errors="replace")[:200])
        self.blobs.append(blob)


_ONCE = "What an object holds twice travels twice: send each part once, and name it by a key in other places"


def _key(x: Any, depth: int = 2) -> str:
    """A key, for an error: it may hold anything, any number of times, so its first parts are shown."""
    if type(x) is tuple and depth:
        parts = [_key(one, depth - 1) for one in x[:4]]
        return f"({', '.join(parts)}{', …' if len(x) > 4 else ',' * (len(x) == 1)})"
    return repr(x) if isinstance(x, enum.Enum) else shown(x)


def _held(x: np.ndarray[Any, Any]) -> int:
    """Bytes of the memory in which an array's elements lie: a view may show some of them again and again."""
    spans = (abs(stride) * (extent - 1) for extent, stride in zip(x.shape, x.strides, strict=True))
    memory: int = sum(spans, x.itemsize)
    return min(x.nbytes, memory)


_WRITERS: dict[type, _Write] = {
    list: _Encoder.sequence,
    dict: _Encoder.plain_mapping,
    tuple: lambda encoder, x, depth: encoder.marked(_Ext.tuple, x, depth),
    set: lambda encoder, x, depth: encoder.members(_Ext.set, x, depth),
    frozenset: lambda encoder, x, depth: encoder.members(_Ext.frozenset, x, depth),
    datetime: _Encoder.datetime,
    complex: lambda encoder, x, _: encoder.leaf(_Ext.complex, _COMPLEX.pack(x.real, x.imag)),
    date: lambda encoder, x, depth: encoder.marked(_Ext.date, (x.toordinal(),), depth),
    timedelta: lambda encoder, x, depth: encoder.marked(
        _Ext.timedelta, (x.days, x.seconds, x.microseconds), depth
    ),
}


def _write_ordered(encoder: _Encoder, x: OrderedDict[Any, Any], depth: int) -> None:
    encoder.packer.pack_array_header(2)
    encoder.leaf(_Ext.ordered, b"")
    encoder.mapping(x, depth)


_WRITERS[OrderedDict] = _write_ordered


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _torch_tensor() -> Any:
    """torch.Tensor where torch was imported, as it was if there is a tensor."""
    return getattr(sys.modules.get("torch"), "Tensor", _Refused)


class _Mark:
    """The first element of an array that stands for another container."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[list[Any]], Any]) -> None:
        self.build = build


def _checked(keys: list[Any]) -> list[Any]:
    """Keys as they are, unless they were made to share hash values: a table of them takes the square of their
    number. Text and bytes are hashed with a key of this process; numbers, and tuples of them, are not."""
    count = len(keys)
    if count <= MAX_ALIKE:
        return keys
    hashes = np.fromiter(map(hash, keys), np.int64, count)
    hashes.sort()
    ends = np.flatnonzero(hashes[1:] != hashes[:-1])
    if count - len(ends) > MAX_ALIKE:
        alike = np.diff(ends, prepend=-1, append=count - 1)
        if int(alike @ alike) > MAX_ALIKE * count:
            raise WireError(
                f"an object with {count} keys in one table that share their hash values, of which there are "
                f"{len(alike)}: it would take too long to read",
                hint="Send them as a list, or in an array",
            )
    return keys


def _build_dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(pairs) > MAX_ALIKE:
        _checked([key for key, _ in pairs])
    return dict(pairs)


def _build_datetime(items: list[Any]) -> datetime:
    text, fold, zone = items
    if isinstance(zone, str):
        zone = ZoneInfo(zone)
    elif zone is not None:
        zone = timezone(zone * _MICROSECOND)
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _build_ordered(items: list[Any]) -> OrderedDict[Any, Any]:
    [inner] = items
    return OrderedDict(inner.items())


_MARKS: dict[int, _Mark] = {
    _Ext.tuple: _Mark(tuple),
    _Ext.set: _Mark(lambda items: set(_checked(items))),
    _Ext.frozenset: _Mark(lambda items: frozenset(_checked(items))),
    _Ext.ordered: _Mark(_build_ordered),
    _Ext.date: _Mark(lambda items: date.fromordinal(*items)),
    _Ext.datetime: _Mark(_build_datetime),
    _Ext.timedelta: _Mark(lambda items: timedelta(*items)),
}


_UNPACKING: dict[str, Any] = {
    "strict_map_key": False,
    "timestamp": 1,  # `encode` makes none; what msgpack makes of one is a number like any other
    "unicode_errors": "surrogatepass",
}


_unpack_plain = partial(msgpack.unpackb, **_UNPACKING)

# First bytes of extensions, which may also stand in text or a float: then the long way says so. (A hook that
# raises is no way to find out: msgpack up to 1.2.0 never frees what it has built by then.)
_EXTENSIONS = b"\xc7\xc8\xc9\xd4\xd5\xd6\xd7\xd8"


class _Decoder:
    """A reader of one encoding."""

    def __init__(self, data: memoryview, allow_pickle: bool) -> None:
        if data.nbytes < _HEAD.size:
            raise WireError(f"an object of {data.nbytes} bytes, which is less than its header")
        self._data = data.cast("B")
        form, size = _HEAD.unpack_from(self._data)
        if form != FORMAT:
            raise WireError(f"an object in format {form}; this version knows {FORMAT}")
        self._next = _HEAD.size + size  # where the next blob begins
        if self._next > len(self._data):
            raise WireError(f"an object whose structure of {size} bytes is not all there")
        self._structure = self._data[_HEAD.size : self._next]
        self._allow_pickle = allow_pickle
        self._marks = 0  # met, and not yet understood as the first of a list

    def decode(self) -> Any:
        """The object. Raises anything where the bytes are nonsense."""
        hooks: dict[str, Any] = {"ext_hook": self._extension, "list_hook": self._list, **_UNPACKING}
        if len(self._structure) > SHORT:
            hooks["object_pairs_hook"] = _build_dict
        value = unpack(self._structure, **hooks)
        if self._marks:
            raise WireError("an object with the mark of a container where there is none")
        if self._next != len(self._data):
            raise WireError(f"an object with {len(self._data) - self._next} bytes behind it")
        return value

    def _list(self, items: list[Any]) -> Any:
        if items and type(items[0]) is _Mark:
            self._marks -= 1
            return items[0].build(items[1:])
        return items

    def _extension(self, code: int, payload: bytes) -> Any:
        if not payload and code in _MARKS:
            self._marks += 1
            return _MARKS[code]
        match code:
            case _Ext.integer:
                return int.from_bytes(payload, "little", signed=True)
            case _Ext.complex:
                return complex(*_COMPLEX.unpack(payload))
            case _Ext.scalar:
                dtype = DTYPES[payload[0]]
                if len(payload) != 1 + dtype.itemsize:
                    raise WireError(f"a scalar of {len(payload) - 1} bytes, not a {dtype.name}")
                return _elements(memoryview(payload)[1:], dtype)[0]
            case _Ext.array:
                return self._array(payload)
            case _Ext.pickled:
                return self._pickled(payload)
        raise WireError(f"an object with an unknown extension, {code}")

    def _take(self, size: int, what: str) -> memoryview:
        """The next blob."""
        end = self._next + size
        if end > len(self._data):
            raise WireError(f"{what} of {size} bytes, of which {len(self._data) - self._next} are there")
        blob = self._data[self._next : end]
        self._next = end
        return blob

    def _array(self, payload: bytes) -> Any:
        code, flags = _ARRAY.unpack_from(payload)
        dtype = DTYPES[code]
        if len(payload) > _ARRAY.size + 8 * MAX_AXES:
            axes = (len(payload) - _ARRAY.size) // 8
            raise WireError(f"an object that cannot be read (an array of {axes} axes)")
        shape = [extent for (extent,) in struct.iter_unpack("<Q", memoryview(payload)[_ARRAY.size :])]
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        blob = self._take(size, "an array")
        array = _elements(blob, dtype).reshape(shape)
        return _as_tensor(array) if flags & _TORCH else array

    def _pickled(self, payload: bytes) -> Any:
        (size,) = _BLOB.unpack_from(payload)
        blob = self._take(size, "a pickled object")
        name = payload[_BLOB.size :].decode(errors="replace")
        if not self._allow_pickle:
            raise UsageError(
                f"the sender pickled a part of the object (it says: of type {name!r:.220}), and this rank, "
                "which receives it, does not allow that",
                hint="Pass allow_pickle=True on this rank, too, if it trusts the sender",
            )
        import pickle

        try:
            return pickle.loads(blob)
        except Exception as error:
            raise WireError(
                f"a pickled object that cannot be unpickled here ({type(error).__name__}: "
                f"{one_line(str(error), 200)})",
                hint="Its type must be importable by the same name on every rank",
            ) from error


def _elements(blob: memoryview, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A new vector of a blob's elements."""
    if dtype == np.bool_:  # a byte that is neither 0 nor 1 would be a bool that behaves like neither
        bools: np.ndarray[Any, Any] = np.frombuffer(blob, np.uint8) != 0
        return bools
    array = np.empty(len(blob) // dtype.itemsize, dtype)
    array.view(np.uint8)[:] = np.frombuffer(blob, np.uint8)
    return array


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """The array as a torch tensor on the same memory; itself where torch or the dtype is missing."""
    try:
        import torch

        if array.dtype == BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    except (ImportError, TypeError):
        return array
