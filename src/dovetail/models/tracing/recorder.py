"""Writes down every ATen operator that runs on tensors without contents.

Functions that training kernels run as one operator (attention, norms, scans, experts) are recorded as one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportDeprecated=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from dovetail.errors import InputError
from dovetail.models.tracing.contents import Contents, is_small, known_place, needs_contents, takes_all
from dovetail.models.tracing.masks import seen_by
from dovetail.models.tracing.pytorch import (
    TorchDispatchMode,
    TorchFunctionMode,
    nn,
    really,
    torch,
    tree_flatten,
    tree_map,
)
from dovetail.models.tracing.trace import Node, Value

Function: TypeAlias = "Callable[..., Any]"

#: Functions recorded whole, by the name their operator gets.
WHOLE: Mapping[Function, str] = {
    nn.functional.scaled_dot_product_attention: "scaled_dot_product_attention",
    nn.functional.linear: "linear",
    nn.functional.rms_norm: "rms_norm",
    nn.functional.layer_norm: "layer_norm",
    nn.functional.group_norm: "group_norm",
    nn.functional.cross_entropy: "cross_entropy",
    nn.functional.dropout: "dropout",
    torch.dropout: "dropout",
    nn.functional.softmax: "softmax",
    nn.functional.embedding_bag: "embedding_bag",
    torch.softmax: "softmax",
    torch.Tensor.softmax: "softmax",
}

#: As many operators as are recorded: a model of a thousand layers that are all different has fewer.
MOST_OPERATORS = 50_000


class Recorder(TorchDispatchMode):
    """Collects nodes; below it fake tensors compute shapes."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        #: rows of a tensor where only its contents say how many there are: one of each sample
        self._picked_rows = batch
        self.nodes: list[Node] = []
        #: what made each value, by its id
        self.maker: dict[int, Node] = {}
        self.notes: dict[str, None] = {}
        self.path: list[str] = []
        self.unit = -1
        self.begun = 0
        self._paused = self._differentiated = 0
        self._values: dict[int, tuple[torch.Tensor, Value]] = {}
        self._next = 0
        self._contents = Contents()

    def declare(self, tensor: torch.Tensor, kind: str, name: str = "", contents: Any = None) -> Value:
        """Gives a tensor an identity in the trace, and contents where they are known."""
        if contents is not None:
            self._contents.keep(tensor, contents)
        self._next += 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        value = Value(self._next, tuple(int(n) for n in tensor.shape), dtype, name, kind)
        self._values[id(tensor)] = (tensor, value)
        return value

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor; one never seen was made outside the module and is a constant."""
        known = self._values.get(id(tensor))
        return known[1] if known is not None and known[0] is tensor else self.declare(tensor, "constant")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not recorded."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def differentiated(self) -> Iterator[None]:
        """What runs inside has a backward, though PyTorch records none for it."""
        self._differentiated += 1
        try:
            yield
        finally:
            self._differentiated -= 1

    @property
    def recording(self) -> bool:
        """Whether what runs is recorded."""
        return not self._paused

    def note(self, target: str, args: Any, options: Any, out: Any, *, kind: str = "computed") -> Any:
        """Records one operator; returns what it returned."""
        given = tree_map(self._argument, (tuple(args), dict(options)))
        flat, _ = tree_flatten(out)
        results = tuple(self.declare(t, kind) for t in flat if isinstance(t, torch.Tensor))
        if results:
            seen = seen_by(target, args, options, self._contents.of)
            self._add(target, given[0], given[1] if seen is None else {**given[1], "seen": seen}, results)
        return out

    def _add(self, target: str, args: tuple[Any, ...], options: Mapping[str, Any], results: tuple[Value, ...]) -> None:
        if len(self.nodes) >= MOST_OPERATORS:
            what = f"runs more than {MOST_OPERATORS:,} operators, token by token or layer by layer"
            raise InputError("module", what, "trace its blocks one by one")
        stops = not self._differentiated and (target == "detach" or not torch.is_grad_enabled())
        node = Node(target, args, options, results, tuple(self.path), self.unit, self.begun, stops)
        self.nodes.append(node)
        self.maker.update((each.id, node) for each in results)

    def _argument(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return self.value(given)
        return given if isinstance(given, int | float | bool | str | Value | None) else str(given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if self._paused:
            return func(*args, **options)
        name = func._overloadpacket.__name__
        out = self._result(name, func, args, options)
        if name == "_local_scalar_dense":
            return out
        if name == "index":
            name, args = self._picked(args, out)
        written = [args[i] for i, a in enumerate(func._schema.arguments) if a.is_write and i < len(args)]
        given = [self.value(t) for t in written if isinstance(t, torch.Tensor)]
        if not given:
            return self.note(name, args, options, out)
        arguments, named = tree_map(self._argument, (tuple(args), dict(options)))
        target = written[0]
        view = self.value(target)
        result = self.declare(target, "computed")
        self._add(name.removesuffix("_"), arguments, named, (result,))
        base = getattr(target, "_base", None)
        if base is not None and target._is_view():
            before = self.value(base)
            after = self.declare(base, "computed")
            self._add("write", (before, result, view), {}, (after,))
        return out

    def differences(self, ends: torch.Tensor) -> list[int]:
        """The steps between whole numbers that are known."""
        known = self._contents.of(ends)
        assert known is not None, "where packed sequences end is not known"
        with really():
            return known.diff().tolist()

    def _result(self, name: str, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """What an operator returns, with its contents where they are known."""
        if not needs_contents(func):
            out = func(*args, **options)
            real = self._contents.after(func, args, options) if is_small(out) else None
        elif (real := self._contents.after(func, args, options)) is None:
            unknown = self._by_contents(name, args)
            return func(*args, **options) if unknown is None else unknown
        elif not isinstance(real, torch.Tensor | tuple):
            return real
        else:
            with self.paused():
                out = tree_map(lambda each: torch.empty(each.shape, dtype=each.dtype), real)
        if real is not None:
            self._contents.keep(out, real)
        return out

    def _picked(self, args: Sequence[Any], out: Any) -> tuple[str, Sequence[Any]]:
        """An index as what it is where its contents are known: one place, or all rows."""
        with really():
            at, everything = known_place(args, self._contents.of), takes_all(args, self._contents.of)
        if at is not None:
            return "slice", (args[0], *at)
        return ("view", (args[0], list(out.shape))) if everything else ("index", args)

    def _by_contents(self, name: str, args: Sequence[Any]) -> Any:
        """A result whose shape or value depends on contents that are not known: a stand-in."""
        with self.paused():
            if name == "_local_scalar_dense":
                if self._is_random(self.value(args[0])):  # whether to drop a layer
                    return False if args[0].dtype is torch.bool else 1
                self.notes["a branch on the contents of a tensor took the side of 1"] = None
                return True if args[0].dtype is torch.bool else 1
            if name == "nonzero":
                return torch.empty((self._picked_rows, args[0].dim()), dtype=torch.int64)
            if name == "index" and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
                mask = next(t for t in args[1] if t is not None)
                return args[0].new_empty((self._rows(mask), *args[0].shape[mask.dim() :]))
            if name == "masked_select":
                return args[0].new_empty((self._rows(args[1]),))
        return None

    def _rows(self, mask: torch.Tensor) -> int:
        """How many points a mask leaves, where that is known."""
        known = self._contents.of(mask)
        with really():
            return self._picked_rows if known is None else int(known.sum())

    def _is_random(self, value: Value) -> bool:
        """Whether it is made of random numbers."""
        waiting, seen = [value], {value.id}
        for each in waiting:
            maker = self.maker.get(each.id)
            if maker is not None and maker.target.startswith("rand"):
                return True
            more = [v for v in maker.inputs() if v.id not in seen] if maker is not None else []
            seen.update(v.id for v in more)
            waiting += more
        return False


class WholeFunctions(TorchFunctionMode):
    """Records some functions as one operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        name = WHOLE.get(func) if self._recorder.recording else None
        if name is None:
            return func(*args, **options)
        with self._recorder.paused():
            out = func(*args, **options)
        flat, _ = tree_flatten((args, options))
        if any(out is each for each in flat):  # a dropout that drops nothing
            return out
        return self._recorder.note(name, args, options, out)


def whole(recorder: Recorder, name: str, function: Function, *, alike: bool = False) -> Function:
    """A function that is recorded as one operator whenever it is called; `alike`, it returns what its first takes."""

    def call(*args: Any, **options: Any) -> Any:
        if not recorder.recording:
            return function(*args, **options)
        with recorder.paused():
            out = args[0].new_empty(args[0].shape) if alike else function(*args, **options)
        return recorder.note(name, args, options, out)

    return call
