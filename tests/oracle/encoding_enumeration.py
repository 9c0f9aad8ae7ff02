"""Counts encodings without strings: which dies hold the same part of each dim, up to mirroring the tile.

Written from the definition's words alone, with nothing of `dovetail.layout`. An encoding is, for each dim and each
way to hold it (resident, streamed), a partition of the tile's dies into those with the same part. Along an axis parts
are runs of neighbours or evenly strided; dims do not depend on each other; what travels takes one hop a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations, product

from dovetail.graph import Kind, Operator

#: For every die of an axis or a tile the number of its block, numbered in order of appearance.
Blocks = tuple[int, ...]
#: A dim, and whether it is held by streaming.
Holding = tuple[str, bool]

#: Of attention, of latent attention, and of the indexer that chooses keys for a sparse one.
INSIDE_A_HEAD = ("head_dim", "value_dim", "nope_dim", "rope_dim", "index_dim")


@dataclass(frozen=True)
class Facts:
    """What the count must know of an operator."""

    #: dims that may be cut, with the number of parts each can be cut into: a size, or a limit where padded
    sizes: Mapping[str, Fraction]
    padded: frozenset[str]
    #: what would travel were a dim streamed
    travels: Mapping[str, frozenset[str]]
    #: dims every output has
    free: frozenset[str]


def facts(operator: Operator, sizes: Mapping[str, int | Fraction]) -> Facts:
    """The facts of a linear operator or an attention, from its operands' dims."""
    assert operator.kind in (Kind.CONTRACTION, Kind.ATTENTION)
    names = {d for o in (*operator.inputs, *operator.outputs) for d in o.indices}
    # a softmax needs whole scores and whole choices
    whole = set(INSIDE_A_HEAD) | ({"selected"} if operator.kind is Kind.ATTENTION else set())
    names -= whole
    travels = {}
    for dim in names:
        lacking: dict[frozenset[str], list[tuple[str, Fraction]]] = {}
        for operand in operator.inputs:
            if dim not in operand.indices:
                # queries differ from keys in their dims; keys and values only inside a head
                kept = frozenset(operand.indices) - (whole if operator.kind is Kind.ATTENTION else set())
                points = Fraction(1)
                for index in operand.indices:
                    points *= sizes[index]
                lacking.setdefault(kept, []).append((operand.tensor, points))
        if lacking:
            largest = max(lacking.values(), key=lambda members: sum(p for _, p in members))
            travels[dim] = frozenset(name for name, _ in largest)
        elif operator.kind is Kind.CONTRACTION and all(dim not in o.indices for o in operator.outputs):
            travels[dim] = frozenset({"the sums"})
    free = {d for d in names if all(d in o.indices for o in operator.outputs)}
    return Facts(
        {d: Fraction(sizes[d]) for d in names},
        frozenset({"vocab"} & names | {d for d in names if Fraction(sizes[d]).denominator != 1}),
        travels,
        frozenset(free),
    )


def numbered(blocks: tuple[object, ...]) -> Blocks:
    """Blocks under numbers in order of appearance: the same partition is the same tuple."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(b, len(numbers)) for b in blocks)


@cache
def partitions(dies: int) -> tuple[Blocks, ...]:
    """Every partition of a row of dies into equal parts that are runs or evenly strided, from one part to one each."""
    found = []
    for blocks in product(range(dies), repeat=dies):
        if numbered(blocks) != blocks:
            continue
        members = [[d for d in range(dies) if blocks[d] == b] for b in sorted(set(blocks))]
        if len({len(m) for m in members}) > 1:
            continue
        if _regular(members, dies):
            found.append(blocks)
    return tuple(found)


def _regular(members: list[list[int]], dies: int) -> bool:
    """Runs one after the other, or sets that start side by side and reach over the whole row."""
    size = len(members[0])
    runs = [list(range(i * size, (i + 1) * size)) for i in range(len(members))]
    strided = [list(range(i, dies, len(members))) for i in range(len(members))]
    return members in (runs, strided)


def independent(chosen: tuple[Blocks, ...]) -> bool:
    """Whether every combination of parts occurs, each on as many dies."""
    if not chosen:
        return True
    seen: dict[tuple[int, ...], int] = {}
    for parts in zip(*chosen, strict=True):
        seen[parts] = seen.get(parts, 0) + 1
    expected = 1
    for blocks in chosen:
        expected *= max(blocks) + 1
    return len(seen) == expected and len(set(seen.values())) == 1


def one_hop(axis: dict[Holding, Blocks], dies: int) -> bool:
    """Whether each run of as many dies as there are travelling parts has all of them, and is the same otherwise."""
    moving = [b for (_, streamed), b in axis.items() if streamed]
    resting = [b for (_, streamed), b in axis.items() if not streamed]
    parts = 1
    for blocks in moving:
        parts *= max(blocks) + 1
    for start in range(0, dies, parts):
        run = range(start, start + parts)
        if len({tuple(b[d] for b in moving) for d in run}) != parts:
            return False
        if len({tuple(b[d] for b in resting) for d in run}) != 1:
            return False
    return True


def along(about: Facts, dies: int) -> Iterator[dict[Holding, Blocks]]:
    """Every way to share dims out along one axis of 2 or 4 dies: at most two dims at once."""
    assert dies in (2, 4)
    trivial = (0,) * dies
    proper = [b for b in partitions(dies) if b != trivial]
    holdings = [(d, s) for d in sorted(about.sizes) for s in (False, True) if not s or d in about.travels]
    for number in range(3):
        for names in combinations(holdings, number):
            for chosen in product(proper, repeat=number):
                axis = dict(zip(names, chosen, strict=True))
                if independent(chosen) and one_hop(axis, dies):
                    yield axis


def on_tile(rows: dict[Holding, Blocks], cols: dict[Holding, Blocks], shape: tuple[int, int]) -> dict[Holding, Blocks]:
    """For each holding which dies of the tile have the same part, row by row."""
    still = (0,) * max(shape)
    dies = list(product(range(shape[0]), range(shape[1])))
    result = {}
    for holding in {*rows, *cols}:
        by_row, by_col = rows.get(holding, still), cols.get(holding, still)
        result[holding] = numbered(tuple((by_row[r], by_col[c]) for r, c in dies))
    return result


def parts_of(*axes: dict[Holding, Blocks]) -> dict[str, int]:
    """Into how many parts each dim is cut."""
    parts: dict[str, int] = {}
    for axis in axes:
        for (dim, _), blocks in axis.items():
            parts[dim] = parts.get(dim, 1) * (max(blocks) + 1)
    return parts


def allowed(about: Facts, rows: dict[Holding, Blocks], cols: dict[Holding, Blocks]) -> bool:
    """Whether dims divide and one operand travels."""
    if len({about.travels[dim] for dim, streamed in (*rows, *cols) if streamed}) > 1:
        return False
    return all(_divides(about, dim, n) for dim, n in parts_of(rows, cols).items())


def is_dominated(about: Facts, tile: dict[Holding, Blocks], dies: int) -> bool:
    """Whether several dies hold the same of everything while a dim that every output has could be cut in two more."""
    distinct = len(set(zip(*tile.values(), strict=True))) if tile else 1
    parts = parts_of(tile)
    return distinct < dies and any(_divides(about, d, parts.get(d, 1) * 2) for d in about.free)


def _divides(about: Facts, dim: str, parts: int) -> bool:
    size = about.sizes[dim]
    return size >= parts if dim in about.padded else size % parts == 0


def mirrorings(rows: int, cols: int) -> Iterator[tuple[int, ...]]:
    """Every way to lay the tile onto itself, as the die each die comes from."""
    dies = list(product(range(rows), range(cols)))
    for down, across, diagonal in product((False, True), repeat=3):
        if diagonal and rows != cols:
            continue
        moved = []
        for r, c in dies:
            r, c = (c, r) if diagonal else (r, c)
            moved.append((rows - 1 - r if down else r) * cols + (cols - 1 - c if across else c))
        yield tuple(moved)


def count(operator: Operator, sizes: Mapping[str, int | Fraction], rows: int, cols: int) -> tuple[int, int]:
    """How many encodings an operator has on a tile: all, and those without dominated copies."""
    about, images = facts(operator, sizes), list(mirrorings(rows, cols))
    moved: dict[tuple[Blocks, int], Blocks] = {}
    seen: dict[object, bool] = {}
    for by_row, by_col in product(list(along(about, rows)), list(along(about, cols))):
        if not allowed(about, by_row, by_col):
            continue
        tile = on_tile(by_row, by_col, (rows, cols))
        forms = []
        for number, image in enumerate(images):
            form = []
            for holding in sorted(tile):
                key = tile[holding], number
                if key not in moved:
                    moved[key] = numbered(tuple(tile[holding][d] for d in image))
                form.append((holding, moved[key]))
            forms.append(tuple(form))
        seen[min(forms)] = is_dominated(about, tile, rows * cols)
    return len(seen), sum(not dominated for dominated in seen.values())
