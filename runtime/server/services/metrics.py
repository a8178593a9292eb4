"""What the control plane measures, for Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from runtime.protocol.nodes import CardHealth, NodeState
from runtime.protocol.states import Status
from runtime.server.services import cards_shown
from runtime.server.services.presence import Presence
from runtime.server.store.database import Database
from runtime.server.store.tables import end_counts, tasks

MIB = 1024 * 1024


class Metrics:
    """Counters live here from the start; what can be looked up is looked up when somebody asks."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.registry = CollectorRegistry()
        self.heartbeat_seconds = Histogram(
            "heterofleet_heartbeat_seconds",
            "Time to answer a heartbeat.",
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
            registry=self.registry,
        )
        self.placement_seconds = Histogram(
            "heterofleet_placement_seconds",
            "Time of one placement.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5),
            registry=self.registry,
        )
        self.statements = Counter(
            "heterofleet_db_statements", "Statements sent to the database.", ["kind"], registry=self.registry
        )
        sa.event.listen(db.engine, "before_cursor_execute", self._count)

    def _count(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        kind = statement.lstrip()[:12].split(None, 1)[0].lower() if statement.strip() else "other"
        self.statements.labels(kind).inc()

    def render(self, presence: Presence, *, braked: bool, rolled_back: bool) -> tuple[bytes, str]:
        """(text, content type) of everything, now."""
        now = CollectorRegistry()
        _nodes(presence, now)
        self._tasks(now)
        Gauge("heterofleet_brake", "1 while nothing is given up.", registry=now).set(1 if braked else 0)
        Gauge("heterofleet_database_rolled_back", "1 while the database is known to be put back.", registry=now).set(
            1 if rolled_back else 0
        )
        return generate_latest(self.registry) + generate_latest(now), CONTENT_TYPE_LATEST

    def _tasks(self, registry: CollectorRegistry) -> None:
        gauge = Gauge("heterofleet_tasks", "Tasks.", ["status"], registry=registry)
        ends = CounterMetricFamily("heterofleet_task_ends", "Ends of attempts by reason.", labels=["reason"])
        with self._db.read() as connection:
            rows = connection.execute(sa.select(tasks.c.status, sa.func.count()).group_by(tasks.c.status)).all()
            for reason, count in connection.execute(sa.select(end_counts.c.reason, end_counts.c.count)):
                ends.add_metric([reason], count)
        registry.register(_Once(ends))
        found = {row[0]: row[1] for row in rows}
        for status in Status:
            gauge.labels(status.value).set(found.get(status.value, 0))


class _Once(Collector):
    """A counter that is kept elsewhere: the library's own would begin anew with each process."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


def _nodes(presence: Presence, registry: CollectorRegistry) -> None:
    views = presence.views()
    states = Gauge("heterofleet_nodes", "Nodes.", ["state"], registry=registry)
    found = Tally(view.state for view in views)
    for state in NodeState:
        states.labels(state.value).set(found.get(state, 0))
    health = Gauge(
        "heterofleet_gpu_health", "1 for the health that a card has.", ["node", "uuid", "health"], registry=registry
    )
    gauges = {
        "utilization_pct": _card_gauge("utilization_ratio", "0 to 1.", registry),
        "memory_used_mib": _card_gauge("memory_used_bytes", "Bytes.", registry),
        "temperature_c": _card_gauge("temperature_celsius", "Degrees.", registry),
        "power_w": _card_gauge("power_watts", "Watts.", registry),
    }
    scale = {"utilization_pct": 0.01, "memory_used_mib": MIB}
    for view in views:
        models = {gpu.uuid: gpu.model or "" for gpu in view.gpus}
        for uuid, own in cards_shown.health(view).items():
            for candidate in CardHealth:
                health.labels(view.node_id, uuid, candidate.value).set(1 if candidate is own else 0)
        if view.state is not NodeState.ONLINE:
            continue  # what its cards measured is over: no value, rather than an old one as if it were of now
        for stats in presence.gpu_stats(view.node_id):
            for name, gauge in gauges.items():
                value = getattr(stats, name)
                if value is not None:
                    labelled = gauge.labels(view.node_id, stats.uuid, models.get(stats.uuid, ""))
                    labelled.set(value * scale.get(name, 1))


def _card_gauge(name: str, unit: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(f"heterofleet_gpu_{name}", unit, ["node", "uuid", "model"], registry=registry)
