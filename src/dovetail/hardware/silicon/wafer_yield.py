"""Yield of wafers: cores that may be dead, dies that are sorted before they are placed, dies that may be dead."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats

#: Defects on one die beyond which spare cores make no difference: dies have about one.
_MOST_DEFECTS = 64


def harvested_yield(cores_mean: Floats, fatal_mean: Floats, spare_cores: Floats, clustering: float) -> Floats:
    """Part of dies without a fatal defect and with no more dead cores than spare ones.

    Defects of a die are Poisson with a rate that is gamma-distributed over dies (Stapper 1983), one rate for both parts
    of the die; j of them in cores and none elsewhere have the probability
    `Γ(α+j)/(Γ(α)·j!) · (m/α)^j / (1 + (m+f)/α)^(α+j)`. Each is taken to cost a core of its own.
    """
    whole = 1 + (cores_mean + fatal_mean) / clustering
    term = whole**-clustering
    probability = np.array(np.broadcast_to(term, np.broadcast_shapes(np.shape(term), np.shape(spare_cores))))
    last = int(min(np.max(spare_cores, initial=0.0), _MOST_DEFECTS))
    for j in range(1, last + 1):
        term = term * ((clustering + j - 1) / j) * (cores_mean / clustering) / whole
        probability += np.where(spare_cores >= j, term, 0.0)
    return np.minimum(probability, 1.0)


def sites_yield(site_yield: Floats, sites: Floats, spare: Floats) -> Floats:
    """Part of wafers on which no more sites are dead than may be: the binomial distribution's lower tail."""
    works = np.clip(site_yield, 1e-300, 1.0)
    with np.errstate(divide="ignore"):
        odds = np.log1p(-works) - np.log(works)
        term = sites * np.log(works)
        shape = np.broadcast_shapes(np.shape(term), np.shape(spare))
        probability = np.array(np.broadcast_to(np.exp(term), shape))
        for dead in range(1, int(np.max(spare, initial=0.0)) + 1):
            term = term + np.log(np.maximum(sites - dead + 1, 0.0) / dead) + odds
            probability += np.where(spare >= dead, np.exp(term), 0.0)
    return np.minimum(probability, 1.0)
