"""Design spaces: files of axes, formulas and limits, and the designs they keep."""

from dovetail.hardware.design_space.space import Axis, DesignBatch, DesignCounts, DesignSpace

__all__ = ["Axis", "DesignBatch", "DesignCounts", "DesignSpace"]
