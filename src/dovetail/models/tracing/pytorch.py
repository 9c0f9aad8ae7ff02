"""The one place that imports PyTorch: what recording needs of it, its private parts included."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeArgument=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as really
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

__all__ = [
    "FakeTensor", "FakeTensorMode", "TorchDispatchMode", "TorchFunctionMode", "nn", "really", "torch", "tree_flatten",
    "tree_leaves", "tree_map", "tree_unflatten",
]  # fmt: skip
