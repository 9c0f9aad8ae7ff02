"""Study files: jobs, a hardware space, a cluster, plans, limits, objectives and how to search, in one YAML."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.exploration.objective import OBJECTIVES
from dovetail.hardware.fields import Name
from dovetail.plans.declaration import Text
from dovetail.plans.plan_file import Count, JobSpec
from dovetail.plans.space import PlanSpaceSpec
from dovetail.search.simulated import MOST

Positive = Annotated[float, Field(gt=0, le=1e18)]
Document = dict[str, Any]


def _listed(value: object) -> object:
    """A single number counts as a list of one."""
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Counts = Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(strict=False, min_length=1, max_length=100)]


class StudyJobSpec(JobSpec):
    """A job of a study: the job of a plan file, with a name and a weight."""

    name: Name | None = None
    """its name in results; default: the model's name"""
    weight: Positive = 1.0
    """how much its step time counts; weights are divided by their sum"""


class HardwarePart(Spec):
    """Which chips or wafers: a design space by name or path, or its fields; fields given with a name change it."""

    space: Text | None = None
    """a design space of the catalogue, or the path of a file"""
    base: Text | Document | None = None
    wafer: Text | Document | None = None
    """instead of a base: designs are wafers"""
    technology: Text | None = None
    coefficients: Literal["value", "low", "high"] | None = None
    shares_cores: bool | None = None
    """whether operators run side by side on parts of a chip's cores; default: as on the base"""
    set: Document | None = None
    vary: Document | None = None
    """axes; with a named space they are added to its own"""
    derive: Document | None = None
    define: Document | None = None
    references: Document | None = None
    limits: Annotated[tuple[Any, ...], Field(strict=False, max_length=100)] | None = None
    source: Text | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> HardwarePart:
        if self.space is not None and self.wafer is not None:
            raise InputError("", "names both a space and a wafer", "give `space`, or `wafer` and `vary`")
        if self.wafer is None and (self.space is None) == (self.base is None):
            raise InputError("", "names both a space and a base, or neither", "give `space`, or `base` and `vary`")
        if self.space is None and not self.vary:
            of = "base" if self.wafer is None else "wafer"
            raise InputError("vary", "is missing", f"say which variables of the {of} take which values")
        return self


class StudyClusterPart(Spec):
    """How many chips, and the network between them; or how many wafers."""

    chips: Counts | None = None
    """a number, or several to choose from"""
    wafers: Counts | None = None
    """the same if designs are wafers; default: one"""
    tiers: Annotated[tuple[Document, ...], Field(strict=False, min_length=1, max_length=8)] | None = None
    """network tiers, innermost first; default: the links of each design's chip"""
    framework: Text = "megatron"


class LimitsPart(Spec):
    """Limits of a design, or of all its chips or wafers together."""

    area_mm2: Positive | None = None
    """of a chip, or of all dies of a wafer (width × height)"""
    power_w: Positive | None = None
    """peak power of a chip or wafer"""
    cost_usd: Positive | None = None
    """of a chip with its package and memory; of a wafer, for all its dies"""
    least_yield: Annotated[float, Field(gt=0, le=1)] | None = None
    """smallest share of wafers that must be sellable, if designs are wafers"""
    chips: Count | None = None
    wafers: Count | None = None
    total_power_w: Positive | None = None
    """peak power of all chips"""
    total_price_usd: Positive | None = None
    """of all chips with their share of the system"""


class StudyPlansPart(PlanSpaceSpec):
    """What plans may be: values of the fields of named strategies, or mappings with every operator sharded freely."""

    strategy: Literal["named", "free"] = "named"
    gap: Annotated[float, Field(ge=0, lt=1)] | None = None
    """of free mappings: how close to the best of a design its search must come; default: the gap of the study"""
    work_limit: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """of free mappings: most skeletons of a design whose layouts are searched; default: no limit"""


class SearchPart(Spec):
    """How to search the designs."""

    method: Literal["exact", "evolutionary", "random", "phaze", "hardware_first"] = "exact"
    """`exact` looks at every design; the others sample: `phaze` from the largest area down, `hardware_first` in the
    order of what operators take on one chip"""
    evaluations: Annotated[int, Field(ge=1, le=10**7)] = 1000
    """designs to sample if the space is not enumerated"""
    window: Annotated[int, Field(ge=1, le=10**5)] | None = None
    """a batch is pruned with the results up to this many batches before it: at least the number of workers; default:
    16, and 2 for free mappings, whose batches take minutes"""
    batch: Annotated[int, Field(ge=1, le=10**4)] = 4
    """designs per batch of plan searches: about a second of work"""
    simulate_top: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """most leading designs, and leading plans of each, to simulate; default: none"""
    gap: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """a study ends when no design can be better than the best by more than this part"""
    time_limit_s: Positive | None = None
    """a study ends after so many seconds with what it has, and goes on with --resume; not part of the answer"""


class ExecutorPart(Spec):
    """Where batches run; not part of the answer."""

    name: Literal["inline", "ray"] = "inline"
    address: Text = "local"
    workers: Annotated[int, Field(ge=1, le=10**5)] | None = None


class StudyFile(Spec):
    """A study file."""

    name: Name
    jobs: Annotated[tuple[StudyJobSpec, ...], Field(strict=False, min_length=1, max_length=20)]
    hardware: HardwarePart
    cluster: StudyClusterPart
    plans: StudyPlansPart = StudyPlansPart.unchecked()
    limits: LimitsPart = LimitsPart.unchecked()
    objectives: Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=4)] = ("step_time",)
    """one: the best design; several: their Pareto front"""
    search: SearchPart = SearchPart.unchecked()
    executor: ExecutorPart = ExecutorPart.unchecked()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    output: Text | None = None
    """the run directory; default: the command line's"""
    source: Text | None = None

    @model_validator(mode="after")
    def _consistent(self) -> StudyFile:
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise InputError("objectives", f"has {name!r:.60}", f"choose from {', '.join(OBJECTIVES)}")
        if len(set(self.objectives)) < len(self.objectives):
            raise InputError("objectives", "names one twice", "give each once")
        names = [job.name for job in self.jobs if job.name]
        if len(set(names)) < len(names):
            raise InputError("jobs", f"have the names {', '.join(names)}", "give each job its own name")
        return self
