"""Pipeline schedules: their explicit order, what a step takes, what a stage holds."""

from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.in_flight import in_flight, peak_in_flight
from dovetail.pipeline.lower_bound import lower_bound
from dovetail.pipeline.step_time import item_times, step_time
from dovetail.pipeline.work_order import Needs, WorkItem, WorkKind, WorkOrder, needs, work_order
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule

__all__ = [
    "ChunkTimes",
    "Needs",
    "Pipeline",
    "PipelineSchedule",
    "WorkItem",
    "WorkKind",
    "WorkOrder",
    "in_flight",
    "item_times",
    "lower_bound",
    "needs",
    "peak_in_flight",
    "step_time",
    "work_order",
]
