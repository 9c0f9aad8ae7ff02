"""An encoding file as a plan: its stages say most of it, the job and the cluster are in the file or given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.launch.launch_file import Reading
from dovetail.layout.encoding import Encoding
from dovetail.layout.encoding.canonical import canonical_as_placed
from dovetail.layout.encoding.document import read_encoding
from dovetail.plans.plan_file import Task, question_of, task_of

#: Whose plans encodings are where a file does not say.
FRAMEWORK = "wafer"


@frozen(kw_only=True)
class EncodingReading(Reading):
    """What an encoding file says; its plan takes the model and the wafers."""

    encoding: Encoding

    @staticmethod
    def of(text: str, where: str) -> EncodingReading:
        """The reading of a file; `plan` has what stands ahead of the stages."""
        encoding, header = read_encoding(text, where)
        cluster = dict(header.cluster)
        framework = cluster.pop("framework", FRAMEWORK)
        return EncodingReading(framework, header.job, cluster, header.plan, encoding=encoding)

    def own_task(self, where: str) -> Task:
        """The task of a file that stands alone."""
        return self.task({"job": self.job, "cluster": {**self.cluster, "framework": self.framework}}, where)

    def task(self, document: Mapping[str, Any], where: str, folder: Path = Path()) -> Task:
        """The task for the job and cluster of a document; stages that no plan means are refused."""
        # compiled formulas, which other launch files are read without
        from dovetail.launch.encoding.plan_encoding import encode_plan
        from dovetail.launch.encoding.plan_fields import NAMED, first_difference, plan_fields_of

        parts = {name: document[name] for name in ("job", "cluster")}
        asked = question_of(parts, where, folder)
        plan = plan_fields_of(self.encoding, self.plan, asked.job, asked.cluster)
        task = task_of({**parts, "plan": plan}, where, folder)
        place = first_difference(canonical_as_placed(self.encoding), encode_plan(task))
        if place is not None:
            named = f"delete {NAMED} and the other degrees of its plan to read the strings as free layouts"
            fix = named if NAMED in self.plan else "a plan shards gradients as their operators, and state as ZeRO does"
            raise InputError(f"{where}: {place}", "is not what the plan says there", fix)
        return task


def read(text: str, where: str) -> Reading:
    """What an encoding file says."""
    return EncodingReading.of(text, where)
