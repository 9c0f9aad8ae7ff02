"""Run by test_fields: declares one more field of a plan, uses it everywhere, and prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

#: The one declaration; it stands behind the last field of the table, which ends the file.
DECLARATION = """
    dispatch_block: Annotated[
        int,
        Field(ge=16, le=4096),
        PlanField(
            "tokens that are dispatched to experts together", domain=lambda scope: (64, 128), short="DB",
            flags={"megatron": "--dispatch-block"},
        ),
    ] = 64
"""
TABLE = "dovetail.plans.fields"


class Declaring(MetaPathFinder, SourceFileLoader):
    """Loads the table of fields with one declaration more."""

    def __init__(self) -> None:
        pass

    def find_spec(self, fullname, path=None, target=None) -> ModuleSpec | None:
        if fullname != TABLE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        SourceFileLoader.__init__(self, fullname, spec.origin)
        spec.loader = self
        return spec

    def get_code(self, fullname):
        source = self.get_source(fullname)
        assert source is not None
        return compile(source + DECLARATION, self.path, "exec", dont_inherit=True)


sys.meta_path.insert(0, Declaring())

from dovetail import frameworks, hardware, models  # noqa: E402
from dovetail.errors import InputError  # noqa: E402
from dovetail.explanation.differences import compare  # noqa: E402
from dovetail.launch.megatron.read import read  # noqa: E402
from dovetail.launch.megatron.write import export  # noqa: E402
from dovetail.models import Job  # noqa: E402
from dovetail.plans.narrowed_space import narrowed, within  # noqa: E402
from dovetail.plans.plan_file import schema, task_of  # noqa: E402
from dovetail.plans.space import PlanSpaceSpec, Space  # noqa: E402
from dovetail.plans.stated_space import stated  # noqa: E402
from dovetail.plans.words import plan_words  # noqa: E402
from dovetail.plans.write import plan_document, plan_fields  # noqa: E402
from dovetail.search.best_first import BestFirst  # noqa: E402
from dovetail.search.membership import covers  # noqa: E402
from dovetail.search.plan import plan  # noqa: E402
from dovetail.step.layer_tables import Setting  # noqa: E402

JOB = Job(models.load("qwen3-0.6b"), seq_len=2048, global_batch=8)
CLUSTER = hardware.cluster("h100-sxm", chips=2)
MEGATRON = frameworks.load("megatron")
ONE = {
    "tensor_parallel": (1,), "context_parallel": (1,), "pipeline_parallel": (1,), "zero_stage": (0, 1),
    "micro_batch": (1,), "recompute": ("none",),
}  # fmt: skip


def document(**fields: object) -> dict:
    return {
        "job": {"model": "qwen3-0.6b", "seq_len": 2048, "global_batch": 8},
        "cluster": {"chip": "h100-sxm", "chips": 2, "framework": "megatron"},
        "plan": fields,
    }


def refused(**fields: object) -> str:
    try:
        task_of(document(**fields), "file")
    except InputError as error:
        return str(error)
    return ""


def found(**fields: object) -> dict:
    answer = plan(JOB, CLUSTER, MEGATRON, space=Space(**ONE, **fields))
    counts = {"counted": answer.certificate.counted, "evaluated": answer.certificate.evaluated}
    return {"block": answer.plan.dispatch_block, "space": answer.certificate.space["dispatch_block"], **counts}  # type: ignore[attr-defined]


def leading() -> list[int]:
    space = Space(**ONE).resolve(JOB, CLUSTER, MEGATRON)
    progress = BestFirst(Setting.of(JOB, CLUSTER, MEGATRON), space, top=4).run()
    return sorted(each.plan.dispatch_block for each in progress.leading)  # type: ignore[attr-defined]


task = task_of(document(dispatch_block=128), "file")
usual = task_of(document(), "file")
back = task_of(plan_document(task.plan, task.job, task.cluster, "megatron"), "back")
odd = task_of(document(dispatch_block=256), "file").plan
print(  # noqa: T201
    json.dumps(
        {
            "read": plan_fields(task.plan)["dispatch_block"],
            "left_out": plan_fields(usual.plan)["dispatch_block"],
            "written": plan_document(task.plan, task.job, task.cluster, "megatron")["plan"]["dispatch_block"],
            "same": back.plan == task.plan != usual.plan,
            "refused": refused(dispatch_block=8),
            "schema": schema()["$defs"]["PlanSpec"]["properties"]["dispatch_block"]["description"],
            "words": [plan_words(task.plan), plan_words(usual.plan)],
            "flags": [line for line in export(task).text.splitlines() if "dispatch" in line],
            "usual_flags": [line for line in export(usual).text.splitlines() if "dispatch" in line],
            "imported": read(export(task).text, "launch").plan["dispatch_block"],
            "missing": [covers(each, JOB, CLUSTER, MEGATRON).reason for each in (task.plan, odd)],
            "differences": [each.fields for each in compare(usual, task).differences],
            "fixed": within(narrowed(["dispatch_block=128"]), JOB, CLUSTER, MEGATRON).dispatch_block,
            "listed": PlanSpaceSpec.model_validate({"dispatch_block": [128]}).dispatch_block,  # type: ignore[attr-defined]
            "sentence": stated(Space().resolve(JOB, CLUSTER, MEGATRON), Space(), MEGATRON)[1],
            "both": found(dispatch_block=(64, 128)),
            "one": found(dispatch_block=(128,)),
            "free": found(),
            "leading": leading(),
        }
    )
)
