"""Chips, clusters, networks, wafers, technologies and design spaces by name, and files of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dovetail.documents import parse_document, read_document, validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.hardware.chip import Chip, ChipSpec
from dovetail.hardware.cluster import Cluster, ClusterSpec, check_chips
from dovetail.hardware.integration import Integration, IntegrationSpec
from dovetail.hardware.network import fit_tiers
from dovetail.hardware.network_file import ClusterNetwork, NetworkSpec, network_tiers
from dovetail.hardware.technology import Technology, TechnologySpec
from dovetail.hardware.wafer import Wafer

if TYPE_CHECKING:
    from dovetail.hardware.design_space import DesignSpace

_FILES = (".yaml", ".yml", ".json")


@lru_cache(maxsize=8)
def _names(kind: str) -> tuple[str, ...]:
    folder = files("dovetail.hardware") / "data" / kind
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def _document(kind: str, name: str) -> dict[str, Any]:
    entry = files("dovetail.hardware") / "data" / kind / f"{name}.yaml"
    return parse_document(entry.read_text(encoding="utf-8"), name, ours=True)


def _check_name(word: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise InputError(word, f"{quoted(name)} is not in the catalogue", one_of(names, name))


def chip_names() -> tuple[str, ...]:
    """Every chip of the catalogue, in alphabetical order."""
    return _names("chips")


def cluster_names() -> tuple[str, ...]:
    """Every cluster of the catalogue, in alphabetical order."""
    return _names("clusters")


def network_names() -> tuple[str, ...]:
    """Every network of the catalogue, in alphabetical order."""
    return _names("networks")


def technology_names() -> tuple[str, ...]:
    """Every technology of the catalogue, in alphabetical order."""
    return _names("technologies")


def space_names() -> tuple[str, ...]:
    """Every design space of the catalogue, in alphabetical order."""
    return _names("spaces")


def wafer_names() -> tuple[str, ...]:
    """Every wafer of the catalogue, in alphabetical order."""
    return _names("wafers")


def integration_names() -> tuple[str, ...]:
    """Every way to join dies of the catalogue, in alphabetical order."""
    return _names("integrations")


def chip(name: str) -> Chip:
    """A chip of the catalogue, or the one a chip file (a path ending in .yaml, .yml or .json) describes."""
    if Path(name).suffix in _FILES:
        return chip_from(read_document(name), name)
    _check_name("chip", name, chip_names())
    return _chip(name)


def chip_from(document: Mapping[str, Any], where: str) -> Chip:
    """The chip a document describes; the one it is calibrated as may be a name of the catalogue or stand in full."""
    fields, followed = _written_out(document, "calibrated_as", where)
    spec = validate(ChipSpec, fields, where)
    if spec.calibrated_as is None:
        return spec.chip()
    if followed is None:
        _check_name(f"{where}: calibrated_as", spec.calibrated_as, chip_names())
    return replace(spec.chip(), calibrated_as=followed or _chip(spec.calibrated_as))


def listed_as(chip: Chip) -> str | None:
    """The name of the catalogue's chip of equal hardware, whatever the chip is called."""
    if chip.name in chip_names() and _chip(chip.name).hardware == chip.hardware:
        return chip.name
    return _names_by_hardware().get(chip.hardware)


def technology(name: str) -> Technology:
    """A technology of the catalogue, or the one a technology file describes."""
    if Path(name).suffix in _FILES:
        return validate(TechnologySpec, read_document(name), name).technology()
    _check_name("technology", name, technology_names())
    return _technology(name)


def technology_of(wafer: Wafer) -> Technology:
    """The technology that the die of a wafer names."""
    if wafer.die.technology is None:
        fix = "give the die a technology of the catalogue"
        raise InputError(f"wafer {wafer.name}: die.technology", "is missing", fix)
    return technology(wafer.die.technology)


def integration(name: str) -> Integration:
    """A way to join dies of the catalogue, or the one a file describes."""
    if Path(name).suffix in _FILES:
        return validate(IntegrationSpec, read_document(name), name).integration()
    _check_name("integration", name, integration_names())
    return _integration(name)


def wafer(name: str) -> Wafer:
    """A wafer of the catalogue, or the one a wafer file describes."""
    if Path(name).suffix in _FILES:
        return wafer_from(read_document(name), name)
    _check_name("wafer", name, wafer_names())
    return _wafer(name)


def wafer_from(document: Mapping[str, Any], where: str) -> Wafer:
    """The wafer a document describes; die and integration may be names of the catalogue or stand there in full."""
    from dovetail.hardware.wafer_file import WaferSpec  # which chips and clusters do without

    fields, die = _written_out(document, "die", where)
    inner: object = fields.get("integration")
    integration: Integration | None = None
    if isinstance(inner, Mapping):
        written = cast("Mapping[str, Any]", inner)
        integration = validate(IntegrationSpec, written, f"{where}: integration").integration()
        fields["integration"] = integration.name
    spec = validate(WaferSpec, fields, where)
    if die is None:
        _check_name(f"{where}: die", spec.die, chip_names())
    if integration is None:
        _check_name(f"{where}: integration", spec.integration, integration_names())
    return spec.wafer(die or _chip(spec.die), integration or _integration(spec.integration))


def network(name: str) -> ClusterNetwork:
    """A network of the catalogue, or the one a network file describes."""
    if Path(name).suffix in _FILES:
        return validate(NetworkSpec, read_document(name), name).network()
    _check_name("network", name, network_names())
    return _network(name)


def cluster_on(network: ClusterNetwork, chip: Chip, chips: int) -> Cluster:
    """A cluster of one kind of chip on a network."""
    check_chips(chips)
    tiers = network_tiers(network, chip, chips, f"network {network.name}: chips")
    return Cluster(f"{chip.name}-{network.name}-{chips}", chip, chips, tiers, network.source, network.doubts)


def cluster(name: str | Chip, chips: int | None = None) -> Cluster:
    """A cluster of the catalogue or of a file, with `chips` of its chips; or of one chip's own links, or of wafers."""
    if chips is not None:
        check_chips(chips)
    if isinstance(name, Chip):
        return _around(name, chips)
    if Path(name).suffix in _FILES:
        document = read_document(name)
        # what no cluster file has and every wafer file does
        if "integration" in document:
            return _of_wafers(wafer_from(document, name), chips)
        return cluster_from(document, name, chips, Path(name).parent)
    if name in chip_names():
        return _around(_chip(name), chips)
    if name in wafer_names():
        return _of_wafers(_wafer(name), chips)
    _check_name("cluster", name, (*cluster_names(), *chip_names(), *wafer_names()))
    return cluster_from(_document("clusters", name), name, chips)


def cluster_from(document: Mapping[str, Any], where: str, chips: int | None = None, folder: Path = Path()) -> Cluster:
    """The cluster a document describes; its chip may be a name of the catalogue or stand there in full."""
    fields, chip = _written_out(document, "chip", where)
    spec = validate(ClusterSpec, fields, where)
    if chip is None and spec.chip not in chip_names():
        raise InputError(
            f"{where}: chip", f"{quoted(spec.chip)} is not in the catalogue", one_of(chip_names(), spec.chip)
        )
    named = None
    if spec.network is not None:
        named = network(_name_or_path(spec.network, f"{where}: network", folder, network_names()))
    return spec.cluster(chip or _chip(spec.chip), named, chips, where)


def space(name: str) -> DesignSpace:
    """A design space of the catalogue, or the one a file describes."""
    return space_from(*space_document(name))


def space_document(name: str) -> tuple[Mapping[str, Any], str, Path]:
    """The document of a design space, what to call it, and the folder its paths begin at."""
    if Path(name).suffix in _FILES:
        return read_document(name), name, Path(name).parent
    _check_name("design space", name, space_names())
    return _document("spaces", name), name, Path()


def space_from(document: Mapping[str, Any], where: str, folder: Path = Path()) -> DesignSpace:
    """The design space a document describes; paths in it begin at `folder`, its base may stand there in full."""
    from dovetail.hardware.design import design_of  # arrays, which chips and clusters do without
    from dovetail.hardware.design_space.file import SpaceSpec
    from dovetail.hardware.wafer_design import wafer_design_of

    fields, inline_chip = _written_out(document, "base", where)
    inner: object = fields.get("wafer")
    inline_wafer: Wafer | None = None
    if isinstance(inner, Mapping):
        inline_wafer = wafer_from(cast("Mapping[str, Any]", inner), f"{where}: wafer")
        fields["wafer"] = inline_wafer.name
    spec = validate(SpaceSpec, fields, where)
    if spec.wafer is not None:
        start = wafer_design_of(
            inline_wafer or wafer(_name_or_path(spec.wafer, f"{where}: wafer", folder, wafer_names()))
        )
    else:
        start = design_of(inline_chip or chip(_name_or_path(spec.base or "", f"{where}: base", folder, chip_names())))
    node = spec.technology or start.base.technology
    made_in = technology(_name_or_path(node, f"{where}: technology", folder, technology_names())) if node else None
    # a chip names a technology of the catalogue, or none: a file may have one of the same name
    name = made_in.name if made_in is not None and _is_shipped(made_in) else None
    return replace(spec.space(start, made_in, where, folder), technology_name=name)


def _written_out(document: Mapping[str, Any], field: str, where: str) -> tuple[dict[str, Any], Chip | None]:
    """A document with the chip of a field by its name, and that chip where it stands there in full."""
    fields = dict(document)
    inner: object = fields.get(field)
    if not isinstance(inner, Mapping):
        return fields, None
    chip = chip_from(cast("Mapping[str, Any]", inner), f"{where}: {field}")
    return {**fields, field: chip.name}, chip


def _is_shipped(technology: Technology) -> bool:
    """Whether a technology is the catalogue's of that name, coefficient by coefficient."""
    return technology.name in technology_names() and _technology(technology.name) == technology


def _name_or_path(name: str, where: str, folder: Path, names: tuple[str, ...]) -> str:
    """A name of the catalogue, or the path of a file from a folder."""
    if Path(name).suffix in _FILES:
        return str(folder / name)
    _check_name(where, name, names)
    return name


def _around(chip: Chip, chips: int | None) -> Cluster:
    """A cluster of one chip's own links."""
    if chips is None:
        raise InputError(f"chip {chip.name}: chips", "is missing", "say how many chips the cluster has")
    tiers = fit_tiers(chip.tiers, chips, f"chip {chip.name}: chips")
    doubts = tuple((field, why) for field, why in chip.doubts if field == "tiers")
    return Cluster(f"{chip.name}-{chips}", chip, chips, tiers, chip.source, doubts)


def _of_wafers(wafer: Wafer, chips: int | None) -> Cluster:
    """As many wafers as have that many dies; one where nobody says."""
    wafers, rest = divmod(wafer.dies if chips is None else chips, wafer.dies)
    if rest:
        fix = f"it should be a multiple of the {wafer.dies} dies of a wafer"
        raise InputError(f"wafer {wafer.name}: chips", f"is {chips}", fix)
    return wafer.cluster(wafers)


@lru_cache(maxsize=256)
def _chip(name: str) -> Chip:
    return chip_from(_document("chips", name), name)


@lru_cache(maxsize=1)
def _names_by_hardware() -> dict[Chip, str]:
    return {_chip(name).hardware: name for name in chip_names()}


@lru_cache(maxsize=16)
def _integration(name: str) -> Integration:
    return validate(IntegrationSpec, _document("integrations", name), name).integration()


@lru_cache(maxsize=64)
def _wafer(name: str) -> Wafer:
    return wafer_from(_document("wafers", name), name)


@lru_cache(maxsize=64)
def _network(name: str) -> ClusterNetwork:
    return validate(NetworkSpec, _document("networks", name), name).network()


@lru_cache(maxsize=64)
def _technology(name: str) -> Technology:
    return validate(TechnologySpec, _document("technologies", name), name).technology()
