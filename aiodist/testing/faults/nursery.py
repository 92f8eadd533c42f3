"""The process that rank processes are forked from. It has imported everything: a new one takes milliseconds.

    driver ──"fork", one socket──▶ nursery ──fork──▶ rank process, which serves that socket (`rank`)
           ◀──pid, its pidfd─────

`python -m aiodist.testing.faults.nursery FD`; FD is a SOCK_SEQPACKET socket to the driver. A nursery has no
thread and no event loop, so forking is safe. It ends when the driver is gone, and with it all that it forked.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

from aiodist.net.descriptors import receive

_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def main() -> None:
    """Fork whenever asked to, until the driver is gone."""
    from aiodist.testing.faults import rank

    rank.prepare()
    driver = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    prctl = ctypes.CDLL(None).prctl
    while True:
        word, fds = receive(driver, 16, 1)
        if not word:
            return
        nursery = os.getpid()
        pid = os.fork()
        if pid:
            pidfd = os.pidfd_open(pid)
            os.close(fds[0])
            socket.send_fds(driver, [b"%d" % pid], [pidfd])
            os.close(pidfd)
            continue
        try:
            prctl(_DEATH_SIGNAL, int(signal.SIGKILL))
            driver.close()
            if os.getppid() == nursery:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                rank.serve(socket.socket(fileno=fds[0]))
        finally:
            sys.stdout.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
