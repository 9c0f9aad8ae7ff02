"""A recipe of torchtitan as options and a model: its Python is parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from dovetail.errors import InputError, quoted
from dovetail.launch.catalogue_match import same_model
from dovetail.launch.torchtitan.options import FlagWords, TitanOptions

#: Calls whose arguments are options → their section.
_SECTIONS = {"TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile"}
_CHECKPOINTING = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
_CONVERTERS = ("Float8LinearConverter", "MXFP8LinearConverter")
_MAX_NODES = 200_000

Document = dict[str, Any]


def is_recipe(text: str) -> bool:
    """Whether a text is a recipe rather than a script that writes one."""
    return "Trainer.Config(" in text and not text.startswith("#!") and "torchrun " not in text


def add_recipe(given: TitanOptions, text: str, where: str, function: str | None = None) -> None:
    """Adds what one function of a recipe says below the flags of a launch; what is computed there is listed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(where, "is no Python", "it should be a recipe, as torchtitan imports it") from None
    options: FlagWords = {}
    for node in _bounded(_function(tree, function, where), where):
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name in _SECTIONS:
                options |= _options(node, _SECTIONS[name], given)
            if name in _CONVERTERS:
                given.precision = "fp8"
            for keyword in node.keywords:
                if keyword.arg == "activation_checkpoint":
                    given.checkpointing = given.checkpointing or _checkpointing(keyword.value, where)
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            given.unknown += [f"{where}: {ast.unparse(each)} (it is assigned)" for each in targets
                              if isinstance(each, ast.Attribute)]  # fmt: skip
    given.add_below(options, where)
    given.sets = {}
    constants = dict(_constants(tree))
    family = next((name for name, signs in _FAMILIES.items() if signs[0] <= constants.keys()), None)
    if family is None:
        given.unknown.append(f"{where}: the model (it is built by code)")
        return
    _check_sizes(constants, where)
    try:
        given.model = same_model(_FAMILIES[family][1](constants), where)
    except (KeyError, TypeError, AttributeError, ArithmeticError, ValueError):
        raise InputError(where, "has constants that do not describe a model", "leave them as they were") from None


def _function(tree: ast.Module, function: str | None, where: str) -> ast.FunctionDef:
    """The function that makes the configuration: the one that is named, or the only one that calls Trainer.Config."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function is None:
        found = [node for node in functions if any(_is_trainer(each) for each in _bounded(node, where))]
    else:
        found = [node for node in functions if node.name == function]
    if len(found) != 1:
        what = f"has {len(found)} functions that make a configuration" if function is None else f"has no {function}()"
        raise InputError(where, what, "give a script that names one with --config, or a file with one")
    return found[0]


def _is_trainer(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Trainer.Config")


def _check_sizes(constants: Mapping[str, Any], where: str) -> None:
    """Numbers of a model are numbers that a model can have, before anything is multiplied."""
    parts: list[object] = list(constants.values())
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += cast("dict[str, object]", part).values()
        elif isinstance(part, list | tuple):
            parts += cast("list[object]", part)
        elif isinstance(part, int | float) and not abs(part) <= 2**40:
            raise InputError(where, f"has the number {quoted(part)}", "it should be one that a model can have")


def _bounded(tree: ast.AST, where: str) -> Iterator[ast.AST]:
    for count, node in enumerate(ast.walk(tree)):
        if count > _MAX_NODES:
            raise InputError(where, "is too long for a recipe", f"keep it under {_MAX_NODES} parts of Python")
        yield node


def _name(node: ast.AST) -> str:
    """The last name of what is called; `FullAC` of `FullAC.Config`."""
    while isinstance(node, ast.Attribute) and node.attr == "Config":
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _options(call: ast.Call, section: str, given: TitanOptions) -> FlagWords:
    options: FlagWords = {}
    for keyword in call.keywords:
        name = f"{section}.{keyword.arg}"
        try:
            value: object = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            given.unknown.append(f"{name} (it is computed)")
            continue
        if isinstance(value, bool):
            options[name if value else f"{section}.no_{keyword.arg}"] = ()
        elif isinstance(value, list):
            parts = cast("list[object]", value)
            nested = [",".join(map(str, cast("list[object]", part))) for part in parts if isinstance(part, list)]
            options[name] = tuple(nested) or (",".join(map(str, parts)),)
        else:
            options[name] = (str(value),)
    return options


def _checkpointing(node: ast.AST, where: str) -> str:
    if isinstance(node, ast.Constant) and node.value is None:
        return "none"
    kind = _CHECKPOINTING.get(_name(node.func) if isinstance(node, ast.Call) else "")
    if kind is None:
        fix = "it should be None, FullAC.Config() or SelectiveAC.Config()"
        raise InputError(f"{where}: activation_checkpoint", "is computed", fix)
    return kind


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                yield statement.targets[0].id, ast.literal_eval(statement.value)
            except (ValueError, TypeError):
                continue


# The model: what plans.launch_models.torchtitan_shapes writes, read back.


def _frame(constants: Mapping[str, Any], blocks: Mapping[str, Document], layers: list[tuple[str, int]]) -> Document:
    rope = constants["ROPE"]
    return {
        "name": "imported",
        "hidden": constants["DIM"],
        "vocab": constants["VOCAB_SIZE"],
        "max_seq_len": rope["max_seq_len"],
        "norm_epsilon": constants["NORM_EPSILON"],
        "rotary": {"base": float(rope["theta"]), "scaling": _scaling(rope, constants)},
        "head": {"tied": constants["TIED"]},
        "blocks": dict(blocks),
        "layers": [{"blocks": [name], "repeat": count} for name, count in layers],
    }


def _scaling(rope: Mapping[str, Any], constants: Mapping[str, Any]) -> Document | None:
    match rope["scaling"]:
        case "llama":
            return {
                "kind": "llama3", "factor": rope["scaling_factor"], "low_frequency": rope["low_freq_factor"],
                "high_frequency": rope["high_freq_factor"],
                "original_seq_len": rope["original_max_position_embeddings"],
            }  # fmt: skip
        case "yarn":
            mscale: Any = constants["LAYERS"]["mscale"] if "MTP_LAYERS" in constants else None
            corrected: Document = {"mscale": mscale, "mscale_all_dim": mscale} if mscale else {}
            return {
                "kind": "yarn", "factor": rope["rope_factor"], "beta_fast": rope["beta_fast"],
                "beta_slow": rope["beta_slow"], "original_seq_len": rope["original_seq_len"],
                "truncate": rope["truncate"], **corrected,
            }  # fmt: skip
        case _:
            return None


def _llama(constants: Mapping[str, Any]) -> Document:
    layers = constants["LAYERS"]
    width = constants["DIM"] // layers["n_heads"]
    mixer = {
        "kind": "attention", "heads": layers["n_heads"], "kv_heads": layers["n_kv_heads"], "head_dim": width,
    }  # fmt: skip
    block = {"mixer": mixer, "feed_forward": {"kind": "dense", "size": layers["hidden_dim"]}}
    return _frame(constants, {"full": block}, [("full", layers["n_layers"])])


def _qwen(constants: Mapping[str, Any]) -> Document:
    blocks: dict[str, Document] = {}
    for name, block in constants["BLOCKS"].items():
        mixer: Document = {
            "kind": "attention", "heads": block["n_heads"], "kv_heads": block["n_kv_heads"],
            "head_dim": block["head_dim"], "qkv_bias": block["qkv_bias"], "window": block["window"],
            "qk_norm": "head" if block["qk_norm"] else "none",
        }  # fmt: skip
        dense = {"kind": "dense", "size": block["hidden_dim"]}
        blocks[name] = {"mixer": mixer, "feed_forward": dense if block["moe"] is None else _mixture(block["moe"])}
    return _frame(constants, blocks, constants["LAYERS"])


def _mixture(moe: Mapping[str, Any]) -> Document:
    return {
        "kind": "mixture", "experts": moe["num_experts"], "top_k": moe["top_k"], "size": moe["hidden_dim"],
        "score": moe["score_func"], "renormalise": moe["route_norm"], "routed_scale": float(moe["route_scale"]),
        "groups": moe["num_expert_groups"] or 1, "top_groups": moe["num_limited_groups"] or 1,
        "shared_size": moe["shared_dim"], "correction_bias": moe["correction_bias"],
    }  # fmt: skip


def _deepseek(constants: Mapping[str, Any]) -> Document:
    layers = constants["LAYERS"]
    size, first = layers["moe_hidden_dim"], layers["n_dense_layers"]
    mixer = {
        "kind": "latent_attention", "heads": layers["n_heads"], "query_rank": layers["q_lora_rank"] or None,
        "kv_rank": layers["kv_lora_rank"], "nope_dim": layers["qk_nope_head_dim"],
        "rope_dim": layers["qk_rope_head_dim"], "value_dim": layers["v_head_dim"],
    }  # fmt: skip
    routed = _mixture({
        "num_experts": layers["num_experts"], "top_k": layers["router_top_k"], "hidden_dim": size,
        "score_func": layers["router_score_func"], "route_norm": layers["router_route_norm"],
        "route_scale": layers["router_route_scale"], "num_expert_groups": layers["router_num_expert_groups"],
        "num_limited_groups": layers["router_num_limited_groups"],
        "shared_dim": layers["num_shared_experts"] * size, "correction_bias": constants["CORRECTION_BIAS"],
    })  # fmt: skip
    blocks = {"sparse": {"mixer": mixer, "feed_forward": routed}}
    order = [("sparse", layers["n_layers"] - first)]
    if first:
        blocks["dense"] = {"mixer": mixer, "feed_forward": {"kind": "dense", "size": layers["dense_hidden_dim"]}}
        order.insert(0, ("dense", first))
    document = _frame(constants, blocks, order)
    if constants["MTP_LAYERS"]:
        document["multi_token_prediction"] = {"modules": constants["MTP_LAYERS"], "block": "sparse"}
    return document


def _gpt_oss(constants: Mapping[str, Any]) -> Document:
    attention, experts = constants["ATTENTION"], constants["EXPERTS"]
    mixer = {
        "kind": "attention", "heads": attention["n_heads"], "kv_heads": attention["n_kv_heads"],
        "head_dim": attention["head_dim"], "qkv_bias": True, "output_bias": True, "sinks": True,
    }  # fmt: skip
    routed = {
        "kind": "mixture", "experts": experts["num_experts"], "top_k": experts["top_k"],
        "size": experts["hidden_dim"], "activation": "swiglu_clamped", "bias": True, "router_bias": True,
        "score": "top_k_softmax",
    }  # fmt: skip
    windows: list[int | None] = constants["WINDOWS"]
    names = {window: "full" if window is None else f"sliding{window}" for window in windows}
    blocks = {name: {"mixer": {**mixer, "window": window}, "feed_forward": routed} for window, name in names.items()}
    return _frame(constants, blocks, [(names[window], 1) for window in windows])


_FAMILIES: Mapping[str, tuple[set[str], Callable[[Mapping[str, Any]], Document]]] = {
    "gpt_oss": ({"ATTENTION", "EXPERTS", "WINDOWS", "ROPE"}, _gpt_oss),
    "deepseek_v3": ({"MTP_LAYERS", "CORRECTION_BIAS", "LAYERS", "ROPE"}, _deepseek),
    "qwen3": ({"BLOCKS", "LAYERS", "ROPE"}, _qwen),
    "llama3": ({"LAYERS", "ROPE", "DIM"}, _llama),
}
