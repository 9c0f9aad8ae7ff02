"""How much of each limit of a study a design uses."""

from __future__ import annotations

import ast
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from dovetail.documents import validate
from dovetail.exploration.limits import limit_expressions
from dovetail.exploration.position import Position
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.study_file import LimitsPart
from dovetail.frozen import frozen
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.expression import Expression
from dovetail.hardware.design_space.scope import Scope
from dovetail.hardware.design_space.sieve import Rule


@frozen
class LimitUse:
    """One limit, and what a design uses of it."""

    #: as the study calls it, or a formula of its design space
    name: str
    within: bool
    #: what the design has and what the limit allows; None for a formula that does not compare two numbers
    used: float | None
    limit: float | None
    #: the part of the limit that is used: 1 leaves nothing
    share: float | None
    #: changes that would gain but break it
    stops: tuple[str, ...] = ()

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return {**asdict(self), "stops": list(self.stops)}


def limit_uses(study: ResolvedStudy, position: Position, designs: Designs) -> tuple[LimitUse, ...]:
    """The limits of a study and of its design space, for one design of a position."""
    if not position.limited:
        return ()
    limits = validate(LimitsPart, study.document.get("limits", {}), "limits")
    expressions = limit_expressions(position.space, limits, position.count)
    scope = Scope(designs, position.space.formulas)
    uses = [_of_study(name, float(getattr(limits, name)), each, scope) for name, each in expressions.items()]
    most = limits.wafers if position.of_wafers else limits.chips
    if most is not None:
        uses.append(_number("wafers" if position.of_wafers else "chips", position.count, most))
    if limits.domain_chips is not None:
        tiers = position.cluster(position.space.base).tiers
        uses.append(_number("domain_chips", tiers[0].size if tiers else 1, limits.domain_chips))
    texts = {expression.text for expression in expressions.values()}
    formulas = {expression.text for expression in position.space.limits}
    rules = [rule for rule in position.space.rules if rule.text not in texts]
    of_space = [_of_space(rule, scope) for rule in rules]
    # that a derived variable is one that can be built is no news
    return (*uses, *(use for use in of_space if use.limit is not None or use.name in formulas or not use.within))


def broken_limits(study: ResolvedStudy, position: Position, designs: Designs) -> tuple[str, ...]:
    """The names of limits that a design breaks."""
    return tuple(use.name for use in limit_uses(study, position, designs) if not use.within)


def _number(name: str, used: float, limit: float) -> LimitUse:
    return LimitUse(name, used <= limit, float(used), float(limit), used / limit)


def _of_study(name: str, limit: float, condition: Expression, scope: Scope) -> LimitUse:
    """A limit in the study's own unit: of all chips where its condition is on one."""
    use = _compared(name, condition, scope)
    if use.share is None:
        return use
    used = limit / use.share if name == "least_yield" else limit * use.share
    return replace(use, used=used, limit=limit)


def _of_space(rule: Rule, scope: Scope) -> LimitUse:
    if rule.condition is None:
        return LimitUse(rule.text, bool(_single(rule.holds(scope))), None, None, None)
    return _compared(rule.text, rule.condition, scope)


def _compared(name: str, condition: Expression, scope: Scope) -> LimitUse:
    """A condition with what stands on its two sides, if it compares two numbers."""
    within = bool(_single(condition.holds(scope)))
    match condition.tree:
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
            used, limit = _value(left, scope), _value(right, scope)
            share = _part(used, limit)
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
            used, limit = _value(left, scope), _value(right, scope)
            share = _part(limit, used)
        case _:
            used = limit = share = None
    return LimitUse(name, within, used, limit, share)


def _value(side: ast.expr, scope: Scope) -> float | None:
    value = float(_single(Expression("", "number", side, ()).number(scope)))
    return value if np.isfinite(value) else None


def _part(used: float | None, limit: float | None) -> float | None:
    return None if used is None or not limit or used < 0 or limit < 0 else used / limit


def _single(values: Any) -> Any:
    return np.ravel(np.asarray(values))[0]
