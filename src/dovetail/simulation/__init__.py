"""An event-driven replay of a training step, with messages that share links: the reference of the model (L2)."""

from dovetail.simulation.simulate import Simulation, simulate

__all__ = ["Simulation", "simulate"]
