"""How many clients each job of a server may have."""

from __future__ import annotations

import pytest

from aiodist.net.shortage import raise_descriptors
from aiodist.rendezvous import quota
from aiodist.rendezvous.quota import clients_of_each


@pytest.mark.parametrize("jobs", [1, 2, 7, 100])
@pytest.mark.parametrize("descriptors", [1024, 4096, 1 << 20])
def test_all_jobs_and_all_unauthenticated_find_room_at_once(jobs: int, descriptors: int) -> None:
    others = min(1024, descriptors // 8)
    each = clients_of_each(jobs, others, descriptors)
    assert each >= 1
    assert jobs * each + 2 * others <= descriptors - 64 - 4 * jobs or each == 1
    assert (jobs + 1) * each + 2 * others + 64 + 4 * jobs > descriptors - jobs, "and nothing is left over"


def test_nobody_is_kept_out_where_there_is_no_limit() -> None:
    assert clients_of_each(100, 1024, 0) > 1_000_000
    assert clients_of_each(0, 1024, 0) > 1_000_000


def test_the_limit_is_this_processs_and_is_raised_to_what_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    found = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda what: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: found.append(limits))
    assert quota.descriptors() == 256
    raise_descriptors()
    raise_descriptors()
    assert found == [(256, 4096), (4096, 4096)]
    found.append((1024, resource.RLIM_INFINITY))
    raise_descriptors()
    assert found[-1] == (1 << 20, resource.RLIM_INFINITY)
    found.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    raise_descriptors()
    assert quota.descriptors() == 0
    assert len(found) == 5, "and is left alone where there is none"
    found.append((1024, 4096))
    raise_descriptors(1000)
    assert len(found) == 6, "and where it is enough"
    raise_descriptors(2000)
    assert found[-1] == (2000, 4096)
