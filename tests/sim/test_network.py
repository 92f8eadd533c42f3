"""Networks, read from a command line and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from aiodist.sim.network import LINK, LinkSpec, network


def test_nothing_said() -> None:
    found = network(None, 3)
    assert found.host_of == (0, 1, 2)
    assert found.links == (LINK,) * 3
    assert found.describe() == "3 ranks on 3 hosts, links of 10 Gbit/s and 20 µs"


def test_the_short_form() -> None:
    found = network(
        "hosts=3x2,link=1Gbit/s:50us:256KiB,local=20GB/s:2us,link.1=10Mbit/s,cores=2", None, ["5:1.5"]
    )
    assert found.host_of == (0, 0, 1, 1, 2, 2)
    plain, slow = LinkSpec(1e9 / 8, 50 * 1e-6, 256 << 10), LinkSpec(10e6 / 8, 50 * 1e-6)
    assert found.links == (plain, slow, plain)
    assert found.local == LinkSpec(20e9, 2 * 1e-6)
    assert (found.cores, dict(found.stragglers)) == (2.0, {5: 1.5})


def test_the_same_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        'local = "20GB/s:2us"\ncores = 2\n[stragglers]\n5 = 1.5\n'
        '[[hosts]]\nranks = 2\nlink = "1Gbit/s:50us:256KiB"\n'
        '[[hosts]]\nranks = 2\nlink = "10Mbit/s:50us"\n'
        '[[hosts]]\nranks = 2\nlink = "1Gbit/s:50us:256KiB"\n'
    )
    words = "hosts=3x2,link=1Gbit/s:50us:256KiB,local=20GB/s:2us,link.1=10Mbit/s,cores=2"
    assert network(str(file), None) == network(words, None, ["5:1.5"])


@pytest.mark.parametrize(
    "words",
    [
        "hosts=",
        "hosts=0",
        "hosts=2x",
        "hosts=2y4",
        "hosts=99999",
        "hosts=2,link=fast",
        "hosts=2,link=1Gbit/s:5",
        "hosts=2,link=0bit/s",
        "hosts=2,link=1:2:3:4",
        "hosts=2,link=1Gbit/s:1us:many",
        "hosts=2,link.7=1Gbit/s",
        "hosts=2,link.x=1Gbit/s",
        "hosts=2,speed=3",
        "hosts=2,more",
        "hosts=2,payload=2",
        "hosts=2,cores=-1",
        "/nowhere.toml",
    ],
)
def test_bad_words(words: str) -> None:
    with pytest.raises(UsageError) as caught:
        network(words, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[hosts",
        "hosts = 3",
        "hosts = [3]",
        "color = 1\n[[hosts]]",
        "[[hosts]]\ncount = -1",
        "[[hosts]]\nspeed = 1",
        '[[hosts]]\nlink = "x"',
        "[[hosts]]\ncount = 2\n[stragglers]\nfirst = 2",
        "[[hosts]]\ncount = 2\n[stragglers]\n7 = 2",
        "stragglers = 3\n[[hosts]]\ncount = 2",
        'payload = "x"\n[[hosts]]',
    ],
)
def test_bad_files(text: str, tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        network(str(file), None)
    assert str(file) in str(caught.value) or "straggler" in str(caught.value) or "no" in str(caught.value)


@pytest.mark.parametrize("word", ["1", "x:2", "1:x", "1:0", "1:-2", "9:2", "1:inf"])
def test_bad_stragglers(word: str) -> None:
    with pytest.raises(UsageError):
        network("hosts=4", None, [word])
