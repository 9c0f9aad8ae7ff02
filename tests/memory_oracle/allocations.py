"""Every storage a run of fake tensors makes or frees, in order: a new storage is an alloc, its death a free."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.tensor._sharding_prop as sharding_prop
from torch._guards import active_fake_mode
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

PARAMETERS = "parameters"
OPTIMIZER = "optimizer"
GRADIENTS = "gradients"
GATHERED = "gathered weights"
UNSHARDED = "unsharded gradients"
ACTIVATIONS = "activations"
RECOMPUTED = "recomputed"
LOGITS = "logits"
INPUTS = "inputs"
TEMPORARY = "temporary"
CATEGORIES: tuple[str, ...] = (
    PARAMETERS,
    OPTIMIZER,
    GRADIENTS,
    GATHERED,
    UNSHARDED,
    ACTIVATIONS,
    RECOMPUTED,
    LOGITS,
    INPUTS,
    TEMPORARY,
)


@dataclass
class Allocation:
    """One storage from its making to its death. Its category may be found out later than its making."""

    number: int
    nbytes: int
    operator: str
    shape: tuple[int, ...]
    dtype: str
    moment: str
    category: str


@dataclass(frozen=True)
class Change:
    """An allocation made or freed, within a named moment."""

    made: bool
    allocation: Allocation
    moment: str


@dataclass(frozen=True)
class Mark:
    """A moment begins before the change of this number."""

    moment: str
    before: int


class Slot:
    """What one storage holds now: FSDP empties and refills the storages of gathered parameters."""

    def __init__(self, operator: str, shape: tuple[int, ...], dtype: str) -> None:
        self.operator, self.shape, self.dtype = operator, shape, dtype
        self.allocation: Allocation | None = None


class AllocationTrace(TorchDispatchMode):
    """Records allocations of the fake mode it is entered in; `category` and `moment` label the ones to come."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.marks: list[Mark] = []
        self.moment = ""
        self.category = TEMPORARY
        #: while logits may be made: how many elements a tensor of theirs has
        self.logits: int | None = None
        self.recording = False
        self._slots = WeakIdKeyDictionary()
        self._made = 0
        self._fake_mode: Any = None
        self._paused = 0

    def begin(self, moment: str) -> None:
        """Names the moment of all changes from here on."""
        self.moment = moment
        self.marks.append(Mark(moment, len(self.changes)))

    @contextmanager
    def within(self, category: str) -> Iterator[None]:
        """Gives what is made inside this category."""
        before, self.category = self.category, category
        try:
            yield
        finally:
            self.category = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Sees nothing that is made inside."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def adopt(self, tensors: Iterable[torch.Tensor], category: str, operator: str) -> None:
        """Says what these tensors are: made before the trace began, or known only after their making."""
        for tensor in tensors:
            with self.paused():
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            for storage in get_untyped_storages(local):
                if storage not in self._slots:
                    self._watch(storage, Slot(operator, tuple(local.shape), str(local.dtype).removeprefix("torch.")))
                allocation = self._slots[storage].allocation
                if allocation is not None:
                    allocation.category = category

    def _watch(self, storage: torch.UntypedStorage, slot: Slot) -> None:
        self._slots[storage] = slot
        weakref.finalize(storage, self._free, slot).atexit = False
        self._fill(slot, storage.nbytes(), self.category)

    def _fill(self, slot: Slot, nbytes: int, category: str) -> None:
        if nbytes and self.recording:
            slot.allocation = Allocation(
                self._made, nbytes, slot.operator, slot.shape, slot.dtype, self.moment, category
            )
            self._made += 1
            self.changes.append(Change(True, slot.allocation, self.moment))

    def _free(self, slot: Slot) -> None:
        if slot.allocation is not None and self.recording:
            self.changes.append(Change(False, slot.allocation, self.moment))
        slot.allocation = None

    def _category_of(self, tensor: torch.Tensor) -> str:
        if self.logits == tensor.numel() and self.category in (ACTIVATIONS, TEMPORARY):
            return LOGITS
        return self.category

    def __enter__(self) -> AllocationTrace:
        self._fake_mode = active_fake_mode()
        self.recording = True
        trace, storage_type = self, torch.UntypedStorage
        self._resize, self._propagate = storage_type.resize_, {}

        def resize(storage: torch.UntypedStorage, nbytes: int) -> None:
            trace._resize(storage, nbytes)
            slot = trace._slots.get(storage)
            if slot is not None:
                trace._free(slot)
                trace._fill(slot, nbytes, trace.category)

        setattr(storage_type, "resize_", resize)  # noqa: B010 - another signature
        # Sharding propagation makes tensors of global shape in our fake mode, which no real run allocates.
        for name in ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached"):
            original = getattr(sharding_prop.ShardingPropagator, name)
            self._propagate[name] = original

            def hidden(*args: Any, _original: Any = original, **options: Any) -> Any:
                with trace.paused():
                    return _original(*args, **options)

            setattr(sharding_prop.ShardingPropagator, name, hidden)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        for name, original in self._propagate.items():
            setattr(sharding_prop.ShardingPropagator, name, original)
        super().__exit__(*error)
        self.recording = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        # a real wait returns the tensor it waited for; the fake one copies it
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        result = func(*args, **(kwargs or {}))
        if not self._paused and active_fake_mode() is self._fake_mode:
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._see(tensor, str(func).removeprefix("aten.").removesuffix(".default"))
        return result

    def _see(self, tensor: torch.Tensor, operator: str) -> None:
        for storage in get_untyped_storages(tensor):
            if storage not in self._slots:
                with self.within(self._category_of(tensor)):
                    self._watch(storage, Slot(operator, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
