"""What an answer rests on: the code, calibration, data and versions that computed it, and what was asked about."""

from __future__ import annotations

from typing import Any

from dovetail.digests import calibration_digest, digest, package_provenance
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job


def question_digests(job: Job, cluster: Cluster, framework: Framework) -> dict[str, str]:
    """Digests of a question's framework, model, chip and cluster, and of the calibration in force for the chip."""
    shipped, measured = calibration_digest(), cluster.chip.measurements
    return {
        "framework": digest(framework),
        "model": digest(job.model),
        "chip": digest(cluster.chip),
        "cluster": digest(cluster),
        "calibration": digest([shipped, *measured]) if measured else shipped,
    }


def provenance_fields(job: Job, cluster: Cluster, framework: Framework) -> dict[str, Any]:
    """What computed an answer to a question, for its `provenance`."""
    computed_by = package_provenance()
    return {**computed_by, "digests": {**computed_by["digests"], **question_digests(job, cluster, framework)}}
