"""Numbers for Prometheus, of pipelines and of stores: docs/operating/metrics.md describes each one."""

from holdfast.interfaces.metrics.exposition import CONTENT_TYPE, merged, render
from holdfast.interfaces.metrics.pipelines import Metrics
from holdfast.interfaces.metrics.stores import StoreMetrics

__all__ = ["CONTENT_TYPE", "Metrics", "StoreMetrics", "merged", "render"]
