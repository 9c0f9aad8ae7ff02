"""Study files: jobs, a hardware space, a cluster, plans, limits, objectives and how to search, in one YAML."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.exploration.objective import OBJECTIVES, Better
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


def _form(value: object) -> str:
    """How a field is written that takes one thing or several, or a name or more than that."""
    return "several" if isinstance(value, list | tuple) else "text" if isinstance(value, str) else "one"


Counts = Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(strict=False, min_length=1, max_length=100)]


class StudyJobSpec(JobSpec):
    """A job of a study: the job of a plan file, with a name and a weight."""

    name: Name | None = None
    """its name in results; default: the model's name"""
    weight: Positive = 1.0
    """how much its step time counts; weights are divided by their sum"""


class HardwarePart(Spec):
    """Which chips or wafers: a design space by name or path, or its fields; fields given with a name change it."""

    name: Name | None = None
    """what its designs are called where a study has several kinds of hardware; default: the space, base or wafer"""
    space: Text | None = None
    """a design space of the catalogue, or the path of a file"""
    base: Text | Document | None = None
    wafer: Text | Document | None = None
    """instead of a base: designs are wafers"""
    technology: Text | None = None
    coefficients: Literal["value", "low", "high"] | None = None
    calibrated_as: Text | None = None
    """a chip of the catalogue whose calibration designs follow; default: the base's"""
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
    networks: Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=20)] | None = None
    """networks of the catalogue or paths of network files, to choose from; instead of tiers"""
    framework: Text = "megatron"


class JobsPart(Spec):
    """What several jobs are together."""

    mean: Literal["arithmetic", "geometric"] = "arithmetic"
    """of step times: their weighted sum, or their weighted geometric mean, which no unit changes"""
    relative_to: Text | None = None
    """what each job's figures are divided by first: its best step time of all designs (`own`), or that on a chip of
    `candidates`"""


class PricesPart(Spec):
    """What a dollar pays for."""

    usd_per_kwh: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """of electricity; 0: dollars are those of the system alone"""
    pue: Annotated[float, Field(ge=1, le=10)] = 1.0
    """energy of the building for each of the system's"""
    life_years: Annotated[float, Field(gt=0, le=100)] = 4.0
    """in which a system's price is written off"""

    @property
    def life_s(self) -> float:
        """The same in seconds."""
        return self.life_years * 365.25 * 86400.0

    @property
    def usd_per_joule(self) -> float:
        """What the energy of the system costs, with that of the building."""
        return self.usd_per_kwh * self.pue / 3.6e6


class ObjectiveSpec(Spec):
    """An objective of one's own."""

    name: Name
    formula: Text
    """of step_s, tokens_per_s, energy_j and what is fixed for a design; it must rise or fall with the step time"""
    unit: Annotated[str, Field(max_length=40)] = ""
    better: Better | None = None
    """default: as its form says; a formula that does not depend on the step time is better the less it is"""


class ScenarioSpec(Spec):
    """What the future may bring: what is given here replaces the same in the study."""

    name: Name
    technology: Text | None = None
    """of every kind of hardware"""
    coefficients: Literal["value", "low", "high"] | None = None
    """which end of the technology's figures"""
    calibrated_as: Text | None = None
    """the chip whose calibration all designs follow"""
    prices: PricesPart | None = None


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
    rack_power_w: Positive | None = None
    """peak power of the chips of a rack"""
    rack_chips: Count | None = None
    """chips that stand in a rack, which `rack_power_w` is about"""
    domain_chips: Count | None = None
    """most chips of a scale-up domain: of the innermost tier of a network"""

    @model_validator(mode="after")
    def _of_racks(self) -> LimitsPart:
        if (self.rack_power_w is None) != (self.rack_chips is None):
            given, other = "rack_power_w", "rack_chips"
            if self.rack_power_w is None:
                given, other = other, given
            raise InputError(given, f"has no {other}", "say both: what a rack may draw and how many chips it has")
        return self


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
    """a study ends after so many seconds with the best so far, and goes on with --resume; not part of the answer"""


class ExecutorPart(Spec):
    """Where batches run; not part of the answer."""

    name: Literal["inline", "ray"] = "inline"
    address: Text = "local"
    workers: Annotated[int, Field(ge=1, le=10**5)] | None = None


class StudyFile(Spec):
    """A study file."""

    name: Name
    jobs: Annotated[tuple[StudyJobSpec, ...], Field(strict=False, min_length=1, max_length=20)]
    over_jobs: JobsPart = JobsPart.unchecked()
    hardware: Annotated[
        Annotated[HardwarePart, Tag("one")]
        | Annotated[
            Annotated[tuple[HardwarePart, ...], Field(strict=False, min_length=1, max_length=20)], Tag("several")
        ],
        Discriminator(_form),
    ]
    """one kind of hardware, or several to choose from"""
    candidates: Annotated[tuple[Text, ...], Field(strict=False, max_length=50)] = ()
    """chips of the catalogue to compare with; those within the limits may win"""
    cluster: StudyClusterPart
    plans: StudyPlansPart = StudyPlansPart.unchecked()
    limits: LimitsPart = LimitsPart.unchecked()
    prices: PricesPart = PricesPart.unchecked()
    objectives: Annotated[
        tuple[
            Annotated[Annotated[Text, Tag("text")] | Annotated[ObjectiveSpec, Tag("one")], Discriminator(_form)], ...
        ],
        Field(strict=False, min_length=1, max_length=4),
    ] = ("step_time",)
    """one: the best design; several: their Pareto front; a name, or a formula of one's own"""
    scenarios: Annotated[tuple[ScenarioSpec, ...], Field(strict=False, max_length=20)] = ()
    """the design with the least worst regret is sought, over the study as given and each of these"""
    search: SearchPart = SearchPart.unchecked()
    executor: ExecutorPart = ExecutorPart.unchecked()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    output: Text | None = None
    """the run directory; default: the command line's"""
    source: Text | None = None

    @model_validator(mode="after")
    def _consistent(self) -> StudyFile:
        for asked in self.objectives:
            if isinstance(asked, str) and asked not in OBJECTIVES:
                fix = f"choose from {', '.join(OBJECTIVES)}, or give a name and a formula"
                raise InputError("objectives", f"has {asked!r:.60}", fix)
        if len(set(self.objective_names)) < len(self.objectives):
            raise InputError("objectives", "names one twice", "give each once")
        if self.over_jobs.relative_to not in (None, "own", *self.candidates):
            fix = "set it to own, or add the chip to candidates"
            raise InputError("over_jobs.relative_to", f"is {self.over_jobs.relative_to!r:.60}", fix)
        self._check_scenarios()
        if self.cluster.tiers is not None and self.cluster.networks is not None:
            raise InputError("cluster.networks", "cannot be combined with tiers", "drop one of them")
        names = [job.name for job in self.jobs if job.name]
        if len(set(names)) < len(names):
            raise InputError("jobs", f"have the names {', '.join(names)}", "give each job its own name")
        return self

    def _check_scenarios(self) -> None:
        """Raises an error for what has no worst regret."""
        if not self.scenarios:
            return
        names = ["as given", *(scenario.name for scenario in self.scenarios)]
        if len(set(names)) < len(names):
            raise InputError("scenarios", f"have the names {', '.join(names)}", "give each its own")
        for where, wrong, fix in (
            ("objectives", len(self.objectives) > 1, "give one"),
            ("search.method", self.search.method != "exact", "set it to exact"),
            ("search.simulate_top", self.search.simulate_top is not None, "leave it out"),
            ("plans.strategy", self.plans.strategy == "free", "set it to named"),
            ("over_jobs.relative_to", self.over_jobs.relative_to is not None, "set over_jobs.mean to geometric"),
        ):
            if wrong:
                raise InputError(where, "cannot be combined with scenarios", fix)

    @property
    def kinds(self) -> tuple[HardwarePart, ...]:
        """Every kind of hardware."""
        return self.hardware if isinstance(self.hardware, tuple) else (self.hardware,)

    @property
    def objective_names(self) -> tuple[str, ...]:
        """What its objectives are called."""
        return tuple(asked if isinstance(asked, str) else asked.name for asked in self.objectives)
