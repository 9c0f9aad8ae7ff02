"""A job: which model is trained, on how many tokens a step, in which numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.graph import HALF_PRECISION, OPTIMIZERS, Element, ModelGraph
from dovetail.models.adapters import Adapters
from dovetail.models.build import model_graph
from dovetail.models.model import Model
from dovetail.models.traced import TracedModel

Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]

MAX_TOKENS_PER_STEP = 2**50


@frozen
class Job:
    """Model, batch and sequence: what a plan must train one step of."""

    #: a Model or a TracedModel: what needs blocks asks `described`
    model: Any
    seq_len: int
    global_batch: int
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    fused_attention: bool = True
    #: LoRA: these are trained, and the model's own weights are frozen
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.model), Model | TracedModel):
            raise InputError("job: model", f"is {quoted(self.model)}", "it should be what dovetail.models.load returns")
        for field in ("seq_len", "global_batch"):
            _check_count(field, getattr(self, field))
        if self.tokens_per_step > MAX_TOKENS_PER_STEP:
            raise InputError(
                "job: global_batch",
                f"makes {self.tokens_per_step} tokens a step",
                f"keep it under {MAX_TOKENS_PER_STEP}",
            )
        _check_choice("precision", self.precision, get_args(Precision))
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if not isinstance(cast("object", self.fused_attention), bool):
            raise InputError("job: fused_attention", f"is {quoted(self.fused_attention)}", "it should be True or False")
        self.model.check_seq_len(self.seq_len, "job: seq_len")
        if isinstance(self.model, TracedModel):
            self.model.check_attention("job: attention", fused=self.fused_attention)
        if self.adapters is not None:
            self._check_adapters(self.adapters)

    @property
    def tokens_per_step(self) -> int:
        """Tokens one optimizer step sees."""
        return self.seq_len * self.global_batch

    @property
    def train_kind(self) -> Literal["full", "lora", "qlora"]:
        """What is trained: all weights, or adapters beside frozen ones."""
        return "full" if self.adapters is None else self.adapters.train_kind

    def graph(self) -> ModelGraph:
        """The model's graph as this job trains it."""
        return model_graph(self.model, fused_attention=self.fused_attention, adapters=self.adapters)

    def check_trains_all(self, given: str) -> None:
        """Refuses frozen weights with something that is for jobs without."""
        if self.adapters is not None:
            raise InputError("job: adapters", f"are given with {given}", "leave one of them out")
        if not self.graph().trains_all():
            raise InputError("job: model", f"has frozen weights and is given with {given}", "train all of its weights")

    def element_bytes(self) -> Mapping[Element, int]:
        """Bytes per element: fp8 and fp4 jobs multiply in these but keep activations in bf16."""
        compute = 4 if self.precision == "fp32" else 2
        return MappingProxyType({**HALF_PRECISION, Element.COMPUTE: compute})

    def _check_adapters(self, adapters: Adapters) -> None:
        if self.precision not in ("bf16", "fp16"):
            what, fix = f"are given with precision {self.precision}", "set it to bf16 or fp16, or leave adapters out"
            raise InputError("job: adapters", what, fix)
        if OPTIMIZERS[self.optimizer].others:
            what = f"are given with the optimizer {self.optimizer}, which is for matrices of blocks"
            raise InputError("job: adapters", what, "use adamw")
        adapters.check(model_graph(self.model, fused_attention=self.fused_attention))


def _check_count(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TOKENS_PER_STEP:
        fix = f"it should be a whole number from 1 to {MAX_TOKENS_PER_STEP}"
        raise InputError(f"job: {field}", f"is {quoted(value)}", fix)


def _check_choice(field: str, value: object, choices: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"job: {field}", f"is {quoted(value)}", one_of(choices, value))
