"""What stands against building a wafer: every physical rule with its figure, its limit and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.frozen import frozen
from dovetail.hardware.defects import DefectMap
from dovetail.hardware.silicon import wafer_geometry
from dovetail.hardware.silicon.wafer_estimate import WaferSilicon
from dovetail.hardware.technology import End, Technology
from dovetail.hardware.wafer import Wafer
from dovetail.hardware.wafer_design import wafer_design_of

ENDS: tuple[End, ...] = ("value", "low", "high")


@frozen
class Finding:
    """One rule about one wafer; figures are parts of what there is, so the limit is 1."""

    rule: str
    value: float
    low: float
    """with every coefficient at its favourable end"""
    high: float
    limit: float
    passes: bool
    certain: bool
    """the verdict is the same with every coefficient at either end"""
    sentence: str
    source: str


#: Rule → the figure that must not be above 1, in the order in which a space applies them.
RULES: Mapping[str, str] = {
    "reticle": "reticle_share",
    "area": "grid_share",
    "wire": "wire_share",
    "die": "die_share",
    "shoreline": "shoreline_share",
    "power": "power_share",
    "yield": "yield_share",
}


def check(wafer: Wafer, technology: Technology) -> tuple[Finding, ...]:
    """Every rule about a wafer made in a technology: that of its die, or another."""
    estimates = {end: estimate(wafer, technology, end) for end in ENDS}
    findings: list[Finding] = []
    for rule, figure in RULES.items():
        value, low, high = (float(getattr(estimates[end], figure)) for end in ENDS)
        certain = (value <= 1) == (low <= 1) == (high <= 1)
        sentence, source = _SENTENCES[rule](estimates["value"])
        findings.append(Finding(rule, value, low, high, 1.0, value <= 1, certain, sentence, source))
    return tuple(findings)


def estimate(wafer: Wafer, technology: Technology, end: End = "value") -> WaferSilicon:
    """The silicon estimate of one wafer."""
    return WaferSilicon(wafer_design_of(wafer), technology, end)


def sampled_defects(wafer: Wafer, technology: Technology, seed: int) -> DefectMap:
    """A map of dead dies and links, drawn with the yields of the estimate."""
    silicon = estimate(wafer, technology)
    return DefectMap.sampled(wafer.rows, wafer.cols, float(silicon.site_yield), silicon.links.link_yield, seed)


def _reticle(silicon: WaferSilicon) -> tuple[str, str]:
    wafer = silicon.designs.wafer
    text = f"a die of {wafer.die_width_mm:g} x {wafer.die_height_mm:g} mm on an exposure field of 26 x 33 mm"
    return text, "what a scanner exposes at once"


def _area(silicon: WaferSilicon) -> tuple[str, str]:
    wafer = silicon.designs.wafer
    along, down = (float(pitch) for pitch in wafer_geometry.pitches_mm(silicon.designs))
    taken = f"{wafer.cols * along - wafer.gap_mm:.1f} x {wafer.rows * down - wafer.gap_mm:.1f} mm"
    memory = f", {wafer.hbm_stacks} stacks each" if wafer.hbm_stacks else ""
    text = f"{wafer.dies} dies{memory} take {taken} of {wafer.width_mm:g} x {wafer.height_mm:g} mm"
    return text, "usable square of a 300 mm wafer (Theseus); stacks of 11 x 10 mm"


def _wire(silicon: WaferSilicon) -> tuple[str, str]:
    longest, reach = float(wafer_geometry.wire_mm(silicon.designs)), silicon.links.wire_reach_mm
    return f"the longest wire between centres is {longest:.1f} mm of {reach:g}", _of(silicon, "wire_reach_mm")


def _die(silicon: WaferSilicon) -> tuple[str, str]:
    wafer, area = silicon.designs.wafer, float(silicon.die_area_mm2)
    available = f"{float(silicon.designs.die_mm2):.0f} mm2 of a die"
    if wafer.die.area_mm2:
        return f"{area:.0f} mm2 as published on {available}", wafer.die.source
    largest = max(silicon.area_parts.items(), key=lambda part: float(part[1]))
    text = f"cores, memories and interfaces take {area:.0f} mm2 ({largest[0]} {float(largest[1]):.0f}) of {available}"
    return text, f"silicon estimate in {silicon.technology.name}"


def _shoreline(silicon: WaferSilicon) -> tuple[str, str]:
    wafer = silicon.designs.wafer
    link = wafer.d2d_bytes_per_s * silicon.links.link_shoreline_mm_per_byte_per_s
    stacks = wafer.hbm_stacks * silicon.numbers.hbm_shoreline_mm
    parts = [f"{link:.1f} mm of link on each edge"]
    parts += [f"{stacks:.1f} mm of memory interface"] if stacks else []
    off = float(wafer_geometry.off_wafer_mm(silicon.designs, silicon.numbers))
    if off:
        rim, store = float(wafer_geometry.rim_mm(silicon.designs)), " and to its store" if wafer.store_bytes else ""
        parts.append(f"{off:.0f} mm of {rim:.0f} mm of rim for links off the wafer{store}")
    edges = f"on edges of {wafer.die_width_mm:g} and {wafer.die_height_mm:g} mm"
    return f"{', '.join(parts)}, {edges}", _of(silicon, "link_shoreline_mm_per_byte_per_s")


def _power(silicon: WaferSilicon) -> tuple[str, str]:
    wafer = silicon.designs.wafer
    each, whole = float(silicon.peak_power_w), float(silicon.wafer_power_w)
    text = f"{wafer.dies - wafer.spare_dies} dies of {each:.0f} W with memory and links are {whole / 1e3:.1f} kW"
    source = wafer.die.source if wafer.die.tdp_w else f"silicon estimate in {silicon.technology.name}"
    return f"{text} of {wafer.power_limit_w / 1e3:g} kW", source


def _yield(silicon: WaferSilicon) -> tuple[str, str]:
    wafer = silicon.designs.wafer
    made, kgd, one = (float(y) for y in (silicon.monolithic_yield, silicon.known_good_yield, silicon.die_yield))
    without = float(silicon.unharvested_yield)
    cores = f", {_percent(without)} if all cores had to" if without < one else ""
    text = (
        f"{_percent(float(silicon.wafer_yield))} of wafers have at most {wafer.spare_dies} dead dies; at least "
        f"{_percent(wafer.least_yield)} should ({_percent(one)} of dies work{cores}; the yield would be "
        f"{_percent(made)} with dies left where they are exposed, {_percent(kgd)} with known good dies)"
    )
    return text, _of(silicon, "fatal_share" if wafer.integration.monolithic else "bond_yield")


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %" if part >= 1e-4 else "less than 0.01 %"


def _of(silicon: WaferSilicon, name: str) -> str:
    return getattr(silicon.designs.wafer.integration, name).source


_SENTENCES: Mapping[str, Callable[[WaferSilicon], tuple[str, str]]] = {
    "reticle": _reticle,
    "area": _area,
    "wire": _wire,
    "die": _die,
    "shoreline": _shoreline,
    "power": _power,
    "yield": _yield,
}
assert tuple(_SENTENCES) == tuple(RULES)
