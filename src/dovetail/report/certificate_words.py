"""What a certificate proves, in words."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.arrays import TOLERANCE
from dovetail.search.answer import Certificate
from dovetail.units import seconds_text


def proof_text(certificate: Certificate) -> str:
    """What is proven, in a sentence."""
    simulated = " in simulation" if certificate.time == "simulated" else ""
    bound = seconds_text(certificate.lower_bound_s or 0.0)
    if certificate.status != "optimal":
        return f"within {certificate.gap or 0.0:.1%} of the best: no plan takes less than {bound}{simulated}"
    least_s, proven_s = certificate.lower_bound_framework_s, certificate.lower_bound_s
    if least_s is None or proven_s is None:
        return f"proven: none of {certificate.counted:,} plans takes less than {bound}{simulated}"
    if least_s >= proven_s * (1 - TOLERANCE):
        return f"proven: nothing the framework runs takes less than {bound} ({certificate.counted:,} plans)"
    return (
        f"proven: none of {certificate.counted:,} plans takes less than {bound}; with other partitions of virtual "
        f"stages the framework cannot gain more than {1 - least_s / proven_s:.1%} of it"
    )


def counts_text(certificate: Certificate) -> str:
    """How many plans were evaluated, do not fit, were pruned, or were not looked at."""
    done = "simulated" if certificate.time == "simulated" else "evaluated"
    text = f"{certificate.evaluated:,} {done}, {certificate.infeasible:,} do not fit, {certificate.pruned:,} pruned"
    if certificate.open:
        return f"{text}, {certificate.open:,} open"
    return f"{text}: none of them can be faster" if certificate.status == "optimal" else text


def proof_of_counts(found: Sequence[Certificate], unknown: Sequence[int]) -> str:
    """What is proven of the best plans for several numbers of chips; of `unknown` not even whether one fits."""
    if unknown:
        numbers = ", ".join(f"{chips:,}" for chips in unknown)
        return f"not known in the time given: whether a plan fits on {numbers} chips"
    counted = sum(certificate.counted for certificate in found)
    if all(certificate.status == "optimal" for certificate in found):
        return f"proven for every number of chips: none of {counted:,} plans is faster"
    gap = max(certificate.gap or 0.0 for certificate in found)
    return f"within {gap:.1%} of the best for every number of chips ({counted:,} plans)"
