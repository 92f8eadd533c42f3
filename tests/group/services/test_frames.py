"""Both forms of a connection's hot half: what is sent leaves in its order, what comes is cut alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist import _engine
from aiodist.base.errors import WireError
from aiodist.group.services.frames import PlainFrameEnd
from aiodist.net.wire import calls
from aiodist.net.wire.calls import Says, frame

FORMS = [PlainFrameEnd] if _engine.compiled is None else [PlainFrameEnd, _engine.compiled.FrameEnd]
Sent = list[tuple[Says, int, int]]  # kind, number, bytes of the body
FRAMES = st.lists(
    st.tuples(
        st.sampled_from(Says),
        st.integers(0, (1 << 64) - 1),
        st.integers(0, 30) | st.just(calls.PIECE),
    ),
    max_size=8,
)


def body_of(number: int, size: int) -> bytes:
    """The body of a frame."""
    return bytes([number % 251]) * size


class End:
    """An end of one form, and what it says."""

    def __init__(self, form: Any) -> None:
        class Form(form):  # type: ignore[misc]
            def _write(self, data: bytes) -> None:
                said.append(data)

            def _frame(self, kind: int, number: int, body: bytes) -> None:
                said.append((kind, number, bytes(body)))
                if kind == Says.GOODBYE:
                    self.over = True

        said: list[Any] = []
        self.said = said
        self.soon: list[Callable[[], None]] = []
        self.end: Any = Form()
        self.end.set_up(self.soon.append, {}, {})

    def deliver(self, data: bytes) -> None:
        """Have bytes come, which may be nonsense."""
        try:
            self.end.deliver(data)
        except WireError as error:
            self.said.append(error.message)
            self.end.over = True


def both(use: Callable[[End], None]) -> list[Any]:
    """What either form says where it is used so; both say the same."""
    said = []
    for form in FORMS:
        end = End(form)
        use(end)
        said.append((end.said, end.end.together, end.end.holds, end.end.over))
    assert all(one == said[0] for one in said)
    return said[0][0]


@given(FRAMES, st.lists(st.integers(1, 9999), min_size=1, max_size=8))
def test_frames_are_cut_alike(sent: Sent, pieces: list[int]) -> None:
    frames = [(kind, number, body_of(number, size)) for kind, number, size in sent]
    stream = b"".join(frame(*one) for one in frames)

    def use(end: End) -> None:
        at = turn = 0
        while at < len(stream) and not end.end.over:
            size = pieces[turn % len(pieces)]
            end.deliver(stream[at : at + size])
            at, turn = at + size, turn + 1

    found = both(use)
    kinds = [kind for kind, _, _ in sent]
    until = kinds.index(Says.GOODBYE) + 1 if Says.GOODBYE in kinds else len(sent)
    assert found == frames[:until]


@given(FRAMES, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(1, 300))
def test_nonsense_is_refused_alike(sent: Sent, changes: list[tuple[int, int]], size: int) -> None:
    stream = bytearray(b"".join(frame(kind, n, body_of(n, min(nbytes, 30))) for kind, n, nbytes in sent))
    for at, byte in changes:
        if stream:
            stream[at % len(stream)] = byte

    def use(end: End) -> None:
        for at in range(0, len(stream), size):
            if not end.end.over:
                end.deliver(bytes(stream[at : at + size]))

    both(use)


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "flush", "turn", "hold", "hear", "forget"]), st.integers(0, 40)),
        max_size=60,
    )
)
def test_what_is_sent_leaves_in_its_order_and_together(steps: list[tuple[str, int]]) -> None:
    def use(end: End) -> None:
        for number, (what, many) in enumerate(steps):
            match what:
                case "send":
                    end.end.send(b"%d," % number, many=many)
                case "flush":
                    end.end.flush()
                case "turn":
                    soon = end.soon[:]
                    end.soon.clear()
                    for one in soon:
                        one()
                case "hold":
                    end.end.holds = True
                case "hear":
                    end.deliver(frame(Says.CANCEL, number) * many)
                case "forget":
                    end.end.forget_held()
                    end.end.over = many == 0
        end.end.flush()

    written = b"".join(one for one in both(use) if isinstance(one, bytes))
    numbers = [int(one) for one in written.split(b",")[:-1]]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("form", FORMS)
def test_many_of_a_turn_leave_in_one_write_and_a_good_part_before_it_ends(form: Any) -> None:
    end = End(form)
    for _ in range(15):
        end.end.send(b"a", many=2)
    assert not end.said
    end.end.send(b"a", many=2)
    assert end.said == [b"a" * 16]
    for _ in range(3):
        end.end.send(b"b", many=2)
    [flush] = end.soon
    flush()
    assert end.said == [b"a" * 16, b"bbb"]
    end.end.send(b"c", many=1)
    assert end.said[2:] == [b"c"]
