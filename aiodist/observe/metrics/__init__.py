"""What a job does, as metrics: one endpoint a job, which adds up its ranks.

catalog       the metrics: names, units, labels, meanings
tally         each counter, and where in a recording it stands: it only grows, while ranks come and go;
              `arrivals`: which rank came last
families      each gauge, likewise; and all metrics of a job, as plain values
prometheus    these as text; needs prometheus-client
otel          these pushed over OTLP; needs OpenTelemetry's SDK
"""

from aiodist.observe.metrics.prometheus import exposition
from aiodist.observe.metrics.tally import Tally

__all__ = ["Tally", "exposition"]
