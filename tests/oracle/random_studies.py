"""Random small studies around several chips: jobs, networks, plans, limits that bite, one objective to four."""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar

import numpy as np

from dovetail import hardware
from dovetail.hardware.catalogue import space_from

Document = dict[str, Any]
Random = np.random.Generator
ItemT = TypeVar("ItemT")

#: Searches on a systolic array, whose operators share cores, take five times as long: it comes less often.
BASES = ("h100-sxm", "a100-80gb", "h100-sxm", "tpu-v4")
MODELS = {"gpt2-1.5b": 1024, "gpt3-1.3b": 1024, "llama-3.2-1b": 512, "qwen3-0.6b": 1024}
OBJECTIVES = ("step_time", "tokens_per_joule", "tokens_per_dollar", "area")
#: Limit → the figure of a design it bounds, and whether all chips count.
LIMITS = {
    "area_mm2": ("area_mm2", False),
    "power_w": ("peak_power_w", False),
    "cost_usd": ("cost_usd", False),
    "total_power_w": ("peak_power_w", True),
    "total_price_usd": ("system_cost_usd", True),
}
FLAT = {"name": "flat", "topology": "switch", "bytes_per_s": "50 GB/s", "latency_s": "2 us"}
INNER = {"name": "inner", "size": 8, "topology": "switch", "bytes_per_s": "400 GB/s", "latency_s": "1 us"}


def random_study(seed: int, most_designs: int) -> Document:
    """A study of at most so many designs, numbers of chips counted too."""
    rng = np.random.default_rng(seed)
    objectives = sorted(_some(rng, OBJECTIVES, seed % 4 + 1), key=lambda _: rng.random())
    chips = [[16], [32], [16, 32], [8, 16, 32]][rng.integers(4)]
    tiers = [None, [FLAT], [INNER, FLAT]][rng.integers(3)]
    base = _one(rng, list(BASES))
    study: Document = {
        "name": f"random-{seed}",
        "jobs": _jobs(rng),
        "hardware": {"base": base, "vary": _axes(rng, base, most_designs // len(chips))},
        "cluster": {"chips": chips[0] if len(chips) == 1 else chips, "framework": _one(rng, ["ideal", "megatron"])},
        "plans": _plans(rng),
        "objectives": objectives,
        "search": {"window": int(rng.integers(1, 20)), "batch": int(rng.integers(1, 9))},
        "seed": seed,
    }
    if tiers is not None:
        study["cluster"]["tiers"] = tiers
    if "rows" in study["hardware"]["vary"]:
        study["hardware"]["derive"] = {"cols": "rows"}
    study["limits"] = _limits(rng, study["hardware"], chips)
    return study


def _one(rng: Random, items: list[ItemT]) -> ItemT:
    return items[int(rng.integers(len(items)))]


def _some(rng: Random, items: tuple[str, ...], number: int) -> list[str]:
    return [items[i] for i in rng.permutation(len(items))[:number].tolist()]


def _jobs(rng: Random) -> list[Document]:
    found: list[Document] = []
    for name in _some(rng, tuple(MODELS), int(rng.integers(1, 3))):
        job: Document = {"model": name, "seq_len": MODELS[name], "global_batch": _one(rng, [32, 64])}
        if rng.random() < 0.5:
            job["weight"] = _one(rng, [0.25, 2, 7.5])
        if rng.random() < 0.3:
            job["optimizer"] = "sgd"
        if rng.random() < 0.3:
            job["precision"] = "fp8"
        if rng.random() < 0.3:
            job["name"] = f"job-{len(found)}"
        found.append(job)
    return found


def _axes(rng: Random, base: str, most_designs: int) -> Document:
    """Values around those of the base; memory from too little to plenty, for most jobs need 20 GB a chip."""
    chip = hardware.chip(base)
    assert chip.link_ports is not None
    cores, ports, clock = chip.tensor_cores, chip.link_ports, chip.clock_hz
    axes: dict[str, list[Any]] = {
        "memory": [
            {"hbm_stacks": stacks, "hbm_stack_bytes": f"{size} GiB", "hbm_stack_bytes_per_s": f"{rate} TB/s"}
            for stacks, size, rate in ((1, 8, 0.3), (2, 12, 0.4), (4, 8, 0.3), (5, 16, 0.6))
        ],
        "tensor_cores": [cores // 2, cores, 2 * cores],
        "clock_hz": [0.7 * clock, clock, 1.3 * clock],
        "link_ports": [1, ports, 2 * ports],
        "link_port_bytes_per_s": ["1 GB/s", "25 GB/s", "50 GB/s"],
        "shared_sram_bytes": ["8 MiB", "64 MiB"],
        "vector_cores": [chip.vector_cores, 2 * chip.vector_cores],
        "dies": [1, 2],
        "narrowest_bits": [16, 8],
    }
    if chip.kind == "systolic":
        axes |= {"rows": [64, 128, 256], "dataflow": ["weight", "output"]}
    order = ["memory", *_some(rng, tuple(name for name in axes if name != "memory"), len(axes) - 1)]
    chosen: Document = {}
    for name in order:
        kept = axes[name] if name == "memory" or rng.random() < 0.5 else axes[name][:2]
        if prod(len(values) for values in chosen.values()) * len(kept) <= most_designs:
            chosen[name] = kept
    return chosen


def _plans(rng: Random) -> Document:
    return {
        "tensor_parallel": _one(rng, [[1], [1, 2], [2, 4]]),
        "context_parallel": [1],
        "pipeline_parallel": _one(rng, [[1], [1, 2], [2]]),
        "virtual_stages": [1],
        "micro_batch": _one(rng, [[1], [1, 2]]),
        "zero_stage": _one(rng, [[0], [0, 1], [1]]),
        "recompute": _one(rng, [["none"], ["none", "full"]]),
        "recompute_share": [1.0],
        "axis_order": ["tp-cp-dp-pp"],
        # any cut takes minutes for a study of some hundred designs
        "partition": _one(rng, ["even", "ends"]),
    }


def _limits(rng: Random, part: Document, chips: list[int]) -> Document:
    """None, one or two limits that leave out some designs."""
    space = space_from({"name": "designs", **part}, "random study")
    every = space.designs(range(space.size))
    found: Document = {}
    for limit in _some(rng, tuple(LIMITS), int(rng.integers(0, 3))):
        name, of_all = LIMITS[limit]
        values = np.sort(space.values(name, every))
        # between two designs, so that rounding decides nothing
        at = int(rng.integers(len(values) // 3, len(values) - 1))
        found[limit] = float(values[at : at + 2].mean()) * (_one(rng, chips) if of_all else 1)
    if len(chips) > 1 and rng.random() < 0.3:
        found["chips"] = chips[-2]
    return found
