"""What kernels use of numba, which ships no types: a compiled function is called as the function itself."""

from collections.abc import Callable, Set
from typing import Any, Literal, TypeVar, overload

_Function = TypeVar("_Function", bound=Callable[..., Any])

@overload
def njit(function: _Function, /) -> _Function: ...
@overload
def njit(
    *,
    cache: bool = ...,
    fastmath: bool | Set[str] = ...,
    forceinline: bool = ...,
    inline: Literal["never", "always"] = ...,
    no_cfunc_wrapper: bool = ...,
    no_cpython_wrapper: bool = ...,
    nogil: bool = ...,
    parallel: bool = ...,
) -> Callable[[_Function], _Function]: ...

prange = range
