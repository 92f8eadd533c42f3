"""What a job does, as metrics: one endpoint a job, which adds up its ranks.

catalog       the metrics: names, units, labels, meanings
tally         counters that only grow, of ranks that come and go; `arrivals`: who came last
families      all metrics of a job, as plain values
prometheus    these as text; needs prometheus-client
otel          these pushed over OTLP; needs OpenTelemetry's SDK
"""

from aiodist.observe.metrics.prometheus import exposition
from aiodist.observe.metrics.tally import Tally

__all__ = ["Tally", "exposition"]
