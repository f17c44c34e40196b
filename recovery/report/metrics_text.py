"""Metrics in the two text formats that scrapers read: that of Prometheus, and OpenMetrics for whoever asks for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from typing_extensions import assert_never, override

from recovery.report.metrics import METRICS, Facts, Kind, numbers_of, seconds_of
from recovery.report.metrics import Metric as Row

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
"""Parts of a recovery take from tens of milliseconds, of a world that forms again, to half an hour in which nobody replaces a host."""


def text_of(
    facts: Facts, accept: str = "", most: dict[tuple[str, str], float] | None = None
) -> tuple[bytes, str]:
    """All metrics of a job, and the content type.

    Args:
        facts: what is known of the job.
        accept: as the header of that name says which format is wanted.
        most: counters by name and label as they were told before: none is told that is smaller, and those of now are put there.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfJob(facts, {} if most is None else most))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # A version that is no number.
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _OfJob(Collector):
    def __init__(self, facts: Facts, most: dict[tuple[str, str], float]) -> None:
        self._facts, self._most = facts, most

    @override
    def collect(self) -> Iterator[Metric]:
        """Those of which something is known."""
        for row in METRICS:
            family = _family(row, self._facts, self._most)
            if family.samples:
                yield family

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked for when it is registered."""
        return iter(())


def _family(row: Row, facts: Facts, most: dict[tuple[str, str], float]) -> Metric:
    labels = [row.label] if row.label else []
    match row.kind:
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(row.name, row.meaning, labels=labels, unit=row.unit)
            for word, value in numbers_of(row, facts).items():
                gauge.add_metric([word] if labels else [], value)
            return gauge
        case Kind.COUNTER:
            counter = CounterMetricFamily(row.name, row.meaning, labels=labels, unit=row.unit)
            for word, value in numbers_of(row, facts).items():
                told = most[row.name, word] = max(value, most.get((row.name, word), 0.0))
                counter.add_metric([word] if labels else [], told)
            return counter
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(row.name, row.meaning, labels=labels, unit=row.unit)
            for word, seconds in seconds_of(row, facts).items():
                histogram.add_metric([word], _buckets(seconds), sum(seconds))
            return histogram
        case _:
            assert_never(row.kind)


def _buckets(seconds: list[float]) -> list[tuple[str, float]]:
    """How many took at most so long."""
    ordered = sorted(seconds)
    found = [(str(limit), float(bisect_right(ordered, limit))) for limit in BUCKETS_S]
    return [*found, ("+Inf", float(len(ordered)))]
