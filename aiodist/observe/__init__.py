"""What ranks write down about themselves, and everything that reads it. It sends nothing of users'.

    recorder/       the record of a rank, in memory that other processes map
    view            what is known of a rank, and of a job, at one moment
    waits, calls    which rank waits for which; which calls wait for each other
    verdict         which rank is the cause; `straggler`, `links`: slow ranks, slow connections
    explain, well   both in sentences; `words`, `figures`, `box`: facts as lines, numbers, a frame
    clocks, spans   clocks of several hosts; `trace`, `flight`, `timeline`: operations in time
    rates, summary  what `aiodist top` shows; `page`, `history`, `matrix`, `output`: what the page shows
    host            looks at the ranks of this host; `source`, `exchange`: of other hosts
    ask, question   what a process does now; `watcher`: a rank's part of it, in the watchdog's thread
    leaving, dumps  records that are kept after a death, and `finding` them again
    fault           the stack that a process writes whose interpreter is held by a call
    overheard       errors that nobody awaited
    metrics/        Prometheus and OpenTelemetry
    dashboard/      the page of `aiodist dashboard`

A number on its way to a screen: a rank writes it (`recorder/`), `view` holds it, `page` or `summary` turns it
into what is shown, `dashboard/static/` and `cli` draw that. Calls of services go another way: once a second
`group/services/overview` says what is under way, the recorder keeps that as `about["calls"]`, and `calls`
here reads it. A metric takes its value from a recording: a counter in `metrics/tally`, a gauge in
`metrics/families`.

All but recorder, host, source, exchange, watcher, leaving and dashboard are pure. A record is data of
somebody else: readers bound what it may cost. Contract: docs/observability.md.
"""

from aiodist.observe.view import Doing, JobView, RankView, Stacks

__all__ = ["Doing", "JobView", "RankView", "Stacks"]
