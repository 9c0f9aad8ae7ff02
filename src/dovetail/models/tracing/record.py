"""Runs a module on tensors without contents.

Of equal layers in a list one is run, the others hand their input on, so a hundred layers take the time of their kinds.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportDeprecated=false
from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from dovetail.errors import InputError
from dovetail.models.tracing.contents import MOST_POINTS
from dovetail.models.tracing.kinds import kind_of, setting, shared_by_units, units_of
from dovetail.models.tracing.pytorch import (
    FakeTensorMode,
    nn,
    really,
    torch,
    tree_flatten,
    tree_unflatten,
)
from dovetail.models.tracing.recorder import Function, Recorder, WholeFunctions
from dovetail.models.tracing.trace import Trace, UnitCall, Value


class Recording:
    """A module made ready: its weights without contents, its modules named, its equal layers skipped."""

    def __init__(
        self, module: nn.Module, batch: int, seq: int | None, *, every_layer: bool = False,
        apart: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.module = module
        self._every_layer, self._apart = every_layer, apart
        self.recorder = Recorder(batch)
        self.batch, self.seq = batch, seq
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._units: list[UnitCall] = []
        self._recorded: dict[object, tuple[int, Any]] = {}
        self._inside = 0

    def run(self, call: Callable[[nn.Module, Function], Any]) -> Trace:
        """Records `call(module, fake)`, which returns the output tensors; `fake` makes an input without contents."""
        with ExitStack() as stack:
            parameters = stack.enter_context(self._emptied())
            stack.enter_context(self._named())
            stack.enter_context(self._fake)
            inputs: list[Value] = []

            def fake(shape: Any, dtype: Any, name: str, contents: Any = None) -> torch.Tensor:
                with really():
                    real = None if contents is None else torch.tensor(contents, dtype=dtype)
                with self.recorder.paused():
                    empty = torch.empty(shape if real is None else real.shape, dtype=dtype)
                if real is None:
                    inputs.append(self.recorder.declare(empty, "input", name))
                else:
                    self.recorder.declare(empty, "constant", name, contents=real)
                return empty

            stack.enter_context(self._own_backward())
            stack.enter_context(self.recorder)
            stack.enter_context(WholeFunctions(self.recorder))
            logger = logging.getLogger("torch._subclasses.fake_tensor")
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)  # what a module raises is told in one sentence
            with torch.random.fork_rng(devices=[]):
                out = call(self.module, fake)
            flat, _ = tree_flatten(out)
            outputs = tuple(self.recorder.value(t) for t in flat if isinstance(t, torch.Tensor))
        frozen = frozenset(n for n, p in self.module.named_parameters() if not p.requires_grad)
        by_id = {id(p): n for n, p in self.module.named_parameters()}
        shared = frozenset(by_id[each] for each in shared_by_units(self.module))
        parameters_in_all = sum(p.numel() for p in self.module.parameters())
        calls = Counter(unit.path for unit in self._units)
        repeated = frozenset(name for name, count in calls.items() if count > 1) - self._apart
        return Trace(
            self.recorder.nodes, tuple(inputs), outputs, parameters, frozen, shared, repeated,
            parameters_in_all, tuple(self._units), self.batch, self.seq, list(self.recorder.notes),
        )  # fmt: skip

    @contextmanager
    def _emptied(self) -> Iterator[dict[int, Value]]:
        """Every parameter and buffer replaced by one without contents; put back at the end."""
        fakes: dict[int, Any] = {}
        kept: list[tuple[dict[str, Any], str, Any]] = []
        values: dict[int, Value] = {}
        training = {m: m.training for m in self.module.modules()}
        self.module.train()
        for prefix, module in self.module.named_modules():
            for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
                for key, tensor in list(table.items()):
                    if tensor is None:
                        continue
                    name = f"{prefix}.{key}".lstrip(".")
                    if id(tensor) not in fakes:
                        with self._fake:
                            empty = torch.empty(tuple(tensor.shape), dtype=tensor.dtype)
                            if kind == "parameter":
                                empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
                        fakes[id(tensor)] = empty
                        known = kind == "buffer" and tensor.device.type == "cpu" and tensor.numel() <= MOST_POINTS
                        contents = tensor.detach().clone() if known else None
                        value = self.recorder.declare(empty, kind, name, contents)
                        values[value.id] = value
                    kept.append((table, key, tensor))
                    table[key] = fakes[id(tensor)]
        try:
            yield values
        finally:
            for table, key, tensor in kept:
                table[key] = tensor
            for module, was in training.items():
                module.training = was

    @contextmanager
    def _own_backward(self) -> Iterator[None]:
        """Functions with a backward of their own run without gradients, which do not stop there."""
        own = vars(torch.autograd.Function)["apply"]

        def apply(cls: Any, *args: Any, **options: Any) -> Any:
            with self.recorder.differentiated():
                return own.__get__(None, cls)(*args, **options)

        with patch.object(torch.autograd.Function, "apply", classmethod(apply)):
            yield

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Modules say where they are while they run; children of lists are units."""
        with ExitStack() as stack:
            for name, module in self.module.named_modules():
                stack.callback(_restore, module, vars(module).get("forward"))
                module.forward = self._entered(name, module.forward)
            shared = shared_by_units(self.module)
            for name, unit in units_of(self.module):
                # what layers share may do something else for each of them
                alone = name in self._apart or any(id(p) in shared for p in unit.parameters())
                kind = (name,) if alone else kind_of(unit)
                unit.forward = self._as_unit(name, kind, unit.forward)
            yield

    def _entered(self, name: str, forward: Function) -> Function:
        def call(*args: Any, **options: Any) -> Any:
            self.recorder.path.append(name)
            try:
                return forward(*args, **options)
            finally:
                self.recorder.path.pop()

        return call

    def _as_unit(self, name: str, kind: object, forward: Function) -> Function:
        """A layer of a list: the first of its kind runs, others hand on what they are given."""

        def call(*args: Any, **options: Any) -> Any:
            if self._inside or not self.recorder.recording:
                return forward(*args, **options)
            flat, spec = tree_flatten((args, options))
            stream = next((t for t in flat if isinstance(t, torch.Tensor) and t.is_floating_point()), None)
            key = (kind, str(spec), *(self._argument(each, stream) for each in flat))
            if stream is not None and key in self._recorded and not self._every_layer:
                index, out = self._recorded[key]
                with self.recorder.paused():
                    made = stream.new_empty(stream.shape)
                taken = self.recorder.value(stream)
                self.recorder.note("skipped", (stream,), {}, made)
                self._append(UnitCall(name, index, taken, self.recorder.value(made)))
                return _with_stream(out, made)
            index = len(self._units)
            taken = None if stream is None else self.recorder.value(stream)
            self._append(UnitCall(name, index, taken))
            self._inside += 1
            outside, self.recorder.unit = self.recorder.unit, index
            try:
                out = forward(*args, **options)
            finally:
                self._inside -= 1
                self.recorder.unit = outside
            if stream is not None and _hands_on(out, stream):
                self._recorded[key] = (index, out)
                flat, _ = tree_flatten(out)
                handed = self.recorder.value(next(t for t in flat if _alike(t, stream)))
                self._units[index] = UnitCall(name, index, taken, handed)
            return out

        return call

    def _argument(self, given: Any, stream: torch.Tensor | None) -> object:
        """What must be the same of an argument for a layer to do the same.

        Of the stream it is the shape alone, and of whole numbers too: positions, and choices of other layers.
        """
        if not isinstance(given, torch.Tensor):
            return setting(given)
        shape = (tuple(given.shape), str(given.dtype))
        is_number = given.dtype in (torch.int32, torch.int64)
        return shape if given is stream or is_number else (*shape, self.recorder.value(given).id)

    def _append(self, call: UnitCall) -> None:
        self._units.append(call)
        self.recorder.begun = len(self._units)


def record(
    module: nn.Module, example_inputs: Any, *, every_layer: bool = False, apart: frozenset[str] = frozenset()
) -> Trace:
    """The forward pass of a module on inputs shaped like the given ones.

    `every_layer` runs equal layers too, each by itself; those `apart` stand for no other.
    """
    args, options = (), dict[str, Any]()
    if isinstance(example_inputs, Mapping):
        options = dict(example_inputs)
    elif isinstance(example_inputs, torch.Tensor):
        args = (example_inputs,)
    else:
        args = tuple(example_inputs)
    flat, spec = tree_flatten((args, options))
    tensors = [t for t in flat if isinstance(t, torch.Tensor)]
    if not tensors or any(not t.dim() for t in tensors):
        raise InputError("example_inputs", "hold no tensor with a batch axis", "give what the module's forward takes")
    tokens = next((t for t in tensors if t.dim() == 2 and not t.is_floating_point()), None)
    ones = ["sample"] * (tensors[0].shape[0] == 1) + ["token"] * (tokens is not None and tokens.shape[1] == 1)
    if ones:
        what = f"have one {ones[0]}, whose axis is taken for one that is not there"
        raise InputError("example_inputs", what, f"give two {ones[0]}s or more")
    seq = None if tokens is None else int(tokens.shape[1])
    recording = Recording(module, int(tensors[0].shape[0]), seq, every_layer=every_layer, apart=apart)

    def call(model: nn.Module, fake: Function) -> Any:
        names = iter(f"input_{i}" if i else "tokens" for i in range(len(flat)))
        made = [fake(tuple(t.shape), t.dtype, next(names)) if isinstance(t, torch.Tensor) else t for t in flat]
        given, named = tree_unflatten(made, spec)
        return _results(model(*given, **named))

    return recording.run(call)


def _results(out: Any) -> Any:
    """The loss or the logits of what a module returns, or else what it computed first of it."""
    for name in ("loss", "logits", "sample"):
        found = out.get(name) if isinstance(out, Mapping) else getattr(out, name, None)
        if isinstance(found, torch.Tensor):
            return found
    fields = vars(out) if dataclasses.is_dataclass(out) else out
    tensors = [t for t in tree_flatten(fields)[0] if isinstance(t, torch.Tensor)]
    if not tensors:
        raise InputError("module", "returns no tensor", "it should return its loss or its logits")
    return next((t for t in tensors if not t.dim() and t.is_floating_point()), tensors[0])


def _restore(module: nn.Module, forward: Any) -> None:
    """Gives a module back the forward it had."""
    vars(module).pop("forward", None)
    if forward is not None:
        module.forward = forward


def _hands_on(out: Any, stream: torch.Tensor) -> bool:
    flat, _ = tree_flatten(out)
    return any(_alike(t, stream) for t in flat)


def _with_stream(out: Any, stream: torch.Tensor) -> Any:
    """A recorded output with the stream in place of what took its place there."""
    flat, spec = tree_flatten(out)
    at = next(i for i, t in enumerate(flat) if _alike(t, stream))
    return tree_unflatten([stream if i == at else t for i, t in enumerate(flat)], spec)


def _alike(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype
