"""Code of kernels that kernels call: left as it is lowered, for it is optimized in what calls it.

numba optimizes every function, makes machine code of it, and does so again in each caller into which it is copied,
however deep. Here that is done once, with all code of an entry together.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class InnerCompiler(Compiler):
    """numba's compiler, but for what becomes of the code."""

    def compile_extra(self, func: FunctionType) -> Any:
        """Compiles a function."""
        state: Any = self.state
        state.library = _InnerLibrary(state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


def for_all_values(dispatcher: Any) -> Any:
    """Compiles a function once for all numbers of a type; numba does it again for each number in the text of a call."""
    template = dispatcher.get_call_template

    def of_types(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        named = {name: types.unliteral(value) for name, value in keywords.items()}
        return template([types.unliteral(value) for value in arguments], named)

    dispatcher.get_call_template = of_types
    return dispatcher


class _InnerLibrary(JITCodeLibrary):
    """Code that others link; no address in memory is known of it."""

    def add_llvm_module(self, ll_module: Any) -> None:
        self._final_module.link_in(ll_module)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002
        return 0

    @property
    def codegen(self) -> Any:
        return _NoEnvironment()


class _NoEnvironment:
    """What tells code in memory its surroundings."""

    def set_env(self, name: str, env: object) -> None:
        """There is none to tell."""
