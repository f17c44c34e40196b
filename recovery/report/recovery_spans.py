"""Recoveries as OpenTelemetry spans, by OTLP over HTTP: one span for each, its parts as children. For the scheduler.

Where they go, and with what, is said by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES (https://opentelemetry.io/docs/specs/otel/protocol/exporter/).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from typing_extensions import override

from recovery.core.records import GenerationRecord
from recovery.report.recoveries import PARTS, Recovery
from recovery.report.timeline import timeline_of_files

_NS = 1_000_000
"""Of a millisecond."""
_SERVICE = "recovery"
"""`service.name`, where OTEL_SERVICE_NAME says no other."""


class _Ended(SpanProcessor):  # type: ignore[misc]  # it ships its types, and is not installed where these are checked
    """Keeps spans that have ended until they are sent, all at once."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    @override
    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class RecoverySpans:
    """Of one scheduler's process. All methods are called in one thread at a time."""

    def __init__(self, job: str, since_ms: int) -> None:
        """Nothing is sent yet.

        Args:
            job: its id.
            since_ms: what was over before, by the wall clock, was another process's to send.
        """
        self._since_ms = since_ms
        self._sent: set[tuple[int, int]] = set()
        self._ended = _Ended()
        resource = Resource.create().merge(Resource({"recovery.job": job}))
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": _SERVICE}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(_SERVICE)
        self._exporter = OTLPSpanExporter()

    def send(self, path: Path, generations: Iterable[GenerationRecord], run: int) -> int:
        """Send what is over and was not sent. Gives how many recoveries could not be: they are sent with the next ones.

        Args:
            path: the recovery path.
            generations: of the job, as the scheduler knows them.
            run: the newest.

        Errors as of `timeline_of_files`.
        """
        timeline, _ = timeline_of_files(path, generations, run=run, draws=False)
        due = [
            one
            for one in timeline.recoveries
            if one.marks_ms[-1] >= self._since_ms and (run, one.generation) not in self._sent
        ]
        if not due:
            return 0
        self._ended.spans.clear()
        for one in due:
            self._make(one, run)
        if self._exporter.export(self._ended.spans) is not SpanExportResult.SUCCESS:
            return len(due)
        self._sent.update((run, one.generation) for one in due)
        return 0

    def _make(self, of: Recovery, run: int) -> None:
        told = {
            "recovery.run": run,
            "recovery.generation": of.generation,
            "recovery.cause": of.cause,
            "recovery.reason": of.because_text,
            "recovery.lost_steps": of.lost_steps,
            "recovery.lost_steps_known": of.lost_steps_known,
        }
        name = "resumption" if of.is_resumption else "recovery"
        begun_ms = of.marks_ms[0] - of.unknown_ms
        whole = self._tracer.start_span(name, attributes=told, start_time=begun_ms * _NS)
        if not of.is_resumption:
            whole.set_status(Status(StatusCode.ERROR, of.because_text))
        around = set_span_in_context(whole)
        if of.unknown_ms:
            self._tracer.start_span("unknown", around, start_time=begun_ms * _NS).end(of.marks_ms[0] * _NS)
        for part, (begins_ms, ends_ms) in zip(PARTS, itertools.pairwise(of.marks_ms), strict=True):
            if ends_ms > begins_ms:
                self._tracer.start_span(part, around, start_time=begins_ms * _NS).end(ends_ms * _NS)
        whole.end(of.marks_ms[-1] * _NS)
