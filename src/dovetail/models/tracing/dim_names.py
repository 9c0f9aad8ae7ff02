"""The field's names for the dims of a traced layer, told from what its operators do."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.models.tracing.flow import VIEWS, Source
from dovetail.models.tracing.infer import Inference
from dovetail.models.tracing.trace import Node, Value

_ACTIVATIONS = frozenset(
    {"silu", "gelu", "relu", "gelu_tanh", "quick_gelu", "relu2", "pointwise", "softcap", "tanh", "sigmoid", "elu"}
)


def handed_dims(inf: Inference, nodes: Sequence[Node], handed: Sequence[Value]) -> dict[int, str]:
    """Names of the atoms of what layers hand to each other: the same in all of them."""
    names = _Names(inf)
    _given(names)
    for value in handed[:1]:
        names.last(value, "hidden")
    for node in nodes:
        if node.target in _TELL:
            _TELL[node.target](names, node)
    for value in handed:
        names.last(value, "hidden")
        names.axis(tuple(a for axis in inf.of(value) for a in axis), "place")
    own = {a for value in handed for axis in inf.of(value) for a in inf.atoms.leaves(axis)}
    return {atom: name for atom, name in names.found.items() if atom in own}


def _given(names: _Names) -> None:
    inf = names.inf
    names.give(inf.batch, "batch")
    for number, atom in enumerate(inf.sequences):
        names.give(atom, "seq" if not number else f"source_seq_{number}")
    for atom in inf.patches:
        names.give(atom, "patches")
    for number, atom in enumerate(inf.keys.values()):
        names.give(atom, "key_seq" if not number else f"key_seq_{number}")


def dims_of(inf: Inference, nodes: Sequence[Node], handed: dict[int, str]) -> dict[int, str]:
    """Names of the atoms of one segment, the surest first."""
    names = _Names(inf)
    names.found.update(handed)
    _given(names)
    for node in nodes:
        if node.target in _TELL:
            _TELL[node.target](names, node)
    mixture = any(n.target == "experts" for n in nodes)
    for node in nodes:
        _feed_forward(names, node, "shared_ffn" if mixture else "ffn")
    return names.found


class _Names:
    """Names given so far; a name taken by another atom gets a number."""

    def __init__(self, inf: Inference) -> None:
        self.inf = inf
        self.found: dict[int, str] = {}

    def give(self, atom: int, name: str) -> None:
        """Names an atom that has no name."""
        root = self.inf.atoms.find(atom)
        if root in self.found:
            return
        taken, own, number = set(self.found.values()), name, 2
        while own in taken:
            own, number = f"{name}_{number}", number + 1
        self.found[root] = own

    def axis(self, axis: Sequence[int], *given: str) -> None:
        """Names the atoms of an axis in order; further ones share the last name with a number."""
        for position, atom in enumerate(self.inf.atoms.leaves(axis)):
            self.give(atom, given[min(position, len(given) - 1)])

    def last(self, value: Value, name: str) -> None:
        """Names the last atom of a value."""
        leaves = self.inf.atoms.leaves(a for axis in self.inf.of(value) for a in axis)
        if leaves and leaves[-1] not in self.found:
            self.give(leaves[-1], name)


def _attention(names: _Names, node: Node) -> None:
    inf = names.inf
    q, k, v = (inf.of(x) for x in node.args)
    k = (*k[:-2], k[-1], k[-2]) if node.options.get("key_last") else k
    keys = {a for axis in (*k[:-2], *v[:-2]) for a in inf.atoms.leaves(axis)}
    batch = inf.atoms.find(inf.batch)
    heads = [a for axis in q[:-2] for a in inf.atoms.leaves(axis) if a != batch]
    for atom in heads:
        names.give(atom, "kv_heads" if atom in keys else "group")
    names.axis(q[-1], "head_dim")
    for atom in inf.atoms.leaves(q[-1]):
        for part, name in zip(inf.atoms.parts(atom), ("nope_dim", "rope_dim"), strict=False):
            if part != atom:
                names.axis((part,), name)
    names.axis(v[-1], "value_dim")
    rows = inf.atoms.leaves(k[-2])
    asked = inf.atoms.leaves(q[-2])
    for atom in asked:
        names.give(atom, "positions")
    for atom in rows:
        names.give(atom, "source_positions")


def _indexer(names: _Names, node: Node) -> None:
    query = names.inf.of(node.args[0])
    names.axis(query[1], "index_heads")
    names.axis(query[2], "index_dim")
    names.axis(names.inf.of(node.result)[-1], "selected")


def _routing(names: _Names, node: Node) -> None:
    names.axis(names.inf.of(node.args[0])[-1], "experts")
    names.axis(names.inf.of(node.results[1])[-1], "top_k")


def _delta(names: _Names, node: Node) -> None:
    inf = names.inf
    q, _, v = (inf.of(x) for x in node.args[:3])
    keys = inf.atoms.leaves(q[2])
    for atom in inf.atoms.leaves(v[2]):
        names.give(atom, "key_heads" if atom == keys[0] else "key_group")
    names.axis(q[2], "key_heads", "key_group")
    names.axis(q[3], "key_dim")
    names.axis(v[3], "value_dim")


def _state_space(names: _Names, node: Node) -> None:
    x, _, _, b, _ = (names.inf.of(v) for v in node.args[:5])
    names.axis(b[2], "state_groups")
    names.axis(x[2], "state_groups" if names.inf.atoms.leaves(b[2]) else "state_heads", "state_heads")
    names.axis(x[3], "channel")
    names.axis(b[3], "state")


def _causal_conv(names: _Names, node: Node) -> None:
    names.axis(names.inf.of(node.arg(1, "weight"))[-1], "conv_kernel")


def _embedding(names: _Names, node: Node) -> None:
    inf, (table, ids) = names.inf, node.args[:2]
    places = inf.flow.of(ids) is Source.CONSTANT
    names.axis(inf.of(table)[-2], "positions" if places else "vocab" if len(ids.shape) > 1 else "classes")


def _embedding_bag(names: _Names, node: Node) -> None:
    names.axis(names.inf.of(node.args[1])[0], "positions")


def _loss(names: _Names, node: Node) -> None:
    if node.options["kind"] == "cross_entropy":
        names.axis(names.inf.of(node.args[0])[-1], "vocab")


_TELL = {
    "attention": _attention, "indexer": _indexer, "routing": _routing, "gated_delta": _delta, "kimi_delta": _delta,
    "state_space": _state_space, "causal_conv1d": _causal_conv, "embedding": _embedding,
    "embedding_bag": _embedding_bag, "loss": _loss,
}  # fmt: skip


def _feed_forward(names: _Names, node: Node, name: str) -> None:
    """The width behind an activation that stands between two products."""
    if node.target not in _ACTIVATIONS or not _from_product(names.inf, node.args[0]):
        return
    leaves = names.inf.atoms.leaves(names.inf.of(node.result)[-1])
    if len(leaves) == 1 and leaves[0] not in names.found:
        names.give(leaves[0], name)


def _from_product(inf: Inference, value: Value) -> bool:
    node = inf.flow.maker.get(value.id)
    while node is not None and (
        node.target in VIEWS or node.target in ("slice", "split", "split_with_sizes", "chunk", "select", "add")
    ):
        node = inf.flow.maker.get(node.args[0].id) if isinstance(node.args[0], Value) else None
    return node is not None and node.target in ("linear", "mm", "addmm", "bmm")
