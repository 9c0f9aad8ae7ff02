"""Design spaces: files of axes, formulas and limits, and the designs they keep."""

from dovetail.hardware.design_space.space import Axis, Batch, Counts, DesignSpace

__all__ = ["Axis", "Batch", "Counts", "DesignSpace"]
