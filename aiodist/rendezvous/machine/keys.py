"""Keys and values."""

from __future__ import annotations

from aiodist.rendezvous.machine.tables import ENTRY_COST, Call, Entry, Kind, Lease, weight
from aiodist.rendezvous.machine.waiting import Waiting
from aiodist.rendezvous.schema import RefusedError, check_name
from aiodist.wire.messages import MAX_FRAME

MAX_VALUE = MAX_FRAME - (16 << 10)  # what grows beyond could never be read


class Keys(Waiting):
    """Adds set, add, append, compare_set, delete_key and their like."""

    def _put(self, key: str, value: bytes, lease: Lease | None = None, answer: int = 0) -> None:
        """Args:
        answer: bytes of the answer.
        """
        old = self._data.get(key)
        if old is None:
            check_name(key)
        self._make_room(self._growth(key, value, old), answer)
        self._place(key, value, lease, old)

    def _growth(self, key: str, value: bytes, old: Entry | None) -> int:
        """Bytes more that a key takes with this value; `old` is what it holds."""
        return weight(key) + len(value) + ENTRY_COST if old is None else len(value) - len(old.value)

    def _place(self, key: str, value: bytes, lease: Lease | None, old: Entry | None) -> None:
        """Put, where there is room already; `old` is what the key holds."""
        if old is not None and old.lease is not None and old.lease is not lease:
            self._detach(key, old.lease)
        self._revision += 1
        self._data[key] = Entry(value, self._revision, lease)
        if lease is not None:
            lease.keys[key] = None
        if self._log is not None:
            self._log.append((Kind.put, key, value, self._revision, 0 if lease is None else lease.token))
        if self._watches:
            self._tell_watches(key, value)
        if key in self._wanted:
            for call in list(self._wanted.pop(key)):
                self._arrived(call, key)

    def _change(
        self, key: str, entry: Entry | None, value: bytes, suffix: bytes | None = None, answer: int = 0
    ) -> None:
        """Put, but under the lease that the key has.

        Args:
            entry: what the key holds.
            suffix: what was appended, where that is all that is new: the log need not hold it all again.
            answer: bytes of the answer.
        """
        if entry is None:
            self._put(key, value, answer=answer)
            return
        self._make_room(len(value) - len(entry.value), answer)
        self._revision += 1  # nobody waits for a key that is there
        self._data[key] = Entry(value, self._revision, entry.lease)
        if self._log is not None:
            whole = suffix is None
            kind = Kind.value if whole else Kind.append
            self._log.append((kind, key, value if whole else suffix, self._revision))
        if self._watches:
            self._tell_watches(key, value)

    def _remove(self, key: str) -> bool:
        entry = self._data.pop(key, None)
        if entry is None:
            return False
        self.size -= weight(key) + len(entry.value) + ENTRY_COST
        if entry.lease is not None:
            self._detach(key, entry.lease)
        self._revision += 1
        self._note(Kind.remove, key, self._revision)
        self._tell_watches(key, None)
        return True

    def _detach(self, key: str, lease: Lease) -> None:
        """A key leaves its lease."""
        lease.keys.pop(key, None)

    def _do_multi_set(self, call: Call, now: float, keys: list[str], values: list[bytes]) -> None:
        if len(keys) != len(values):
            raise RefusedError(f"multi_set got {len(keys)} keys and {len(values)} values")
        last = dict(zip(keys, values, strict=True))
        for key in last:
            check_name(key)
        growth = sum(self._growth(key, value, self._data.get(key)) for key, value in last.items())
        self._make_room(growth)  # all or nothing
        for key, value in zip(keys, values, strict=True):
            self._place(key, value, None, self._data.get(key))
        self._done(call)

    def _do_add(self, call: Call, now: float, key: str, amount: int) -> None:
        entry = self._data.get(key)
        try:
            total = (int(entry.value) if entry else 0) + amount
        except ValueError:
            raise RefusedError(f"add to '{key}', which holds no number") from None
        if not -(2**63) <= total < 2**63:
            raise RefusedError(f"add to '{key}' leaves the range of a 64-bit integer")
        self._change(key, entry, b"%d" % total)
        self._done(call, total)

    def _do_append(self, call: Call, now: float, key: str, value: bytes) -> None:
        entry = self._data.get(key)
        if entry is None:
            self._put(key, value)
        else:
            if len(entry.value) + len(value) > MAX_VALUE:
                raise RefusedError(
                    f"append makes '{key}' larger than {MAX_VALUE >> 20} MiB", "Begin another key"
                )
            self._change(key, entry, entry.value + value, suffix=value)
        self._done(call)

    def _do_compare_set(self, call: Call, now: float, key: str, expected: bytes, desired: bytes) -> None:
        # torch's meaning: an absent key matches only an empty `expected`, and answers with it otherwise.
        entry = self._data.get(key)
        if entry is None and expected:
            answer = expected
        elif entry is None or entry.value == expected:
            self._change(key, entry, desired, answer=len(desired))
            self._done(call, desired)
            return
        else:
            answer = entry.value
        self._make_room(0, len(answer))
        self._done(call, answer)

    def _do_delete_key(self, call: Call, now: float, key: str) -> None:
        if key not in self._data:
            self._make_room(0)
        self._done(call, self._remove(key))

    def _do_check(self, call: Call, now: float, keys: list[str]) -> None:
        self._reply(call, all(key in self._data for key in keys))

    def _do_list_keys(self, call: Call, now: float, prefix: str) -> None:
        self._reply(call, sorted(key for key in self._data if key.startswith(prefix)))

    def _do_num_keys(self, call: Call, now: float, prefix: str) -> None:
        self._reply(call, sum(key.startswith(prefix) for key in self._data))

    def _do_fence(self, call: Call, now: float) -> None:
        """A number larger than all before: a change without a key."""
        self._make_room(0)
        self._revision += 1
        self._note(Kind.revision, self._revision)
        self._done(call, self._revision)
