"""Plans that contradict themselves, their cluster, their model or their framework: each refused by its reason."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.plans.plan_file import task_of
from valid_plans import CHIP, EXPERTS, PLAN_FILES, TIERS, Document, model, with_changes

#: File, changes, and what the sentence must hold.
CONTRADICTIONS: list[tuple[str, dict[str, Document], str]] = [
    ("sharded", {"plan": {"sequence_parallel": True}}, "plan.sequence_parallel: needs tensor_parallel"),
    ("sharded", {"plan": {"zero_stage": 0}}, "plan.zero_group: is 8 with zero_stage 0"),
    ("sharded", {"plan": {"virtual_stages": 2}}, "plan.virtual_stages: is 2 with one stage"),
    ("dense", {"plan": {"virtual_stages": 2}}, "plan.virtual_stages: is 2 with 1f1b"),
    ("dense", {"plan": {"pipeline_schedule": "interleaved"}}, "plan.virtual_stages: is 1"),
    ("dense", {"plan": {"expert_parallel": 2}}, "plan.expert_parallel: is 2 and the model has no experts"),
    ("dense", {"plan": {"expert_tensor_parallel": 2}}, "plan.expert_tensor_parallel: needs a model with experts"),
    ("dense", {"plan": {"pipeline_parallel": 8, "data_parallel": 1, "virtual_stages": 2, "pipeline_schedule": None}},
     "plan.pipeline_parallel: makes 16 parts of 8 layers"),
    ("mixture", {"plan": {"expert_parallel": 64}}, "plan.expert_parallel: makes groups of 64 chips in stages of 32"),
    ("mixture", {"plan": {"expert_parallel": 32}}, "plan.expert_parallel: leaves 32 chips to share 16 experts"),
    ("mixture", {"plan": {"expert_tensor_parallel": 8}}, "plan.expert_parallel: makes groups of 64 chips"),
    ("context", {"plan": {"context_parallel": 16, "zero_group": 16}, "job": {"seq_len": 100_008}},
     "plan.context_parallel: leaves 16 chips to share 100008 tokens"),
    ("two ways", {"plan": {"pipeline_parallel": 1}}, "plan.pipeline_parallel: 1 is odd"),
    ("two ways", {"plan": {"micro_batch": 8}}, "plan.micro_batch: makes 4 micro-batches"),
    ("uneven", {"plan": {"recompute": ["mixer_norm", "mlp.activaton"]}}, "did you mean 'mlp.activation'"),
    ("uneven", {"job": {"seq_len": 4096}}, "job.seq_len: is 4096"),
    ("dense", {"job": {"global_batch": 2**40}}, "job.global_batch: makes"),
    ("dense", {"job": {"global_batch": 2**33, "seq_len": 8}}, "plan.micro_batch: makes 1073741824 micro-batches"),
]  # fmt: skip

CLUSTERS: list[tuple[str, Document, str]] = [
    ("dense", {"chip": "h100"}, "cluster.chip: 'h100' is not in the catalogue; did you mean 'h100-sxm'"),
    ("dense", {"chip": "selene"}, "cluster.chip: 'selene' is not in the catalogue"),
    ("dense", {"chip": None}, "cluster.name: and chip exclude each other"),
    ("dense", {"name": "eos"}, "cluster.name: and chip exclude each other"),
    ("dense", {"chips": None}, "cluster.chips: is missing"),
    ("dense", {"chips": 2**30}, "cluster.chips"),
    ("dense", {"chips": 33}, "chips: 33 do not fill groups of 8"),
    ("dense", {"framework": "megatron-lm"}, "cluster.framework: 'megatron-lm' is not in the catalogue; did you mean"),
    ("sharded", {"name": "hgx-h10"}, "cluster.name: 'hgx-h10' is not in the catalogue; did you mean 'hgx-h100'"),
    ("sharded", {"tiers": TIERS}, "cluster.tiers: cannot be combined with a named cluster"),
    ("sharded", {"chips": 2**30}, "cluster.chips"),
    ("described", {"chips": 36}, "cluster.chips: 36 do not fill groups of 8"),
    ("described", {"tiers": TIERS[::-1]}, "cluster.tiers: have the sizes [32, 8]"),
    ("described", {"tiers": [TIERS[0] | {"size": 7}, TIERS[1]]}, "cluster.chips"),
    ("described", {"tiers": [TIERS[0] | {"topology": "torus"}]}, "cluster.tiers.0.shape: is missing"),
    ("described", {"tiers": [TIERS[0] | {"sise": 8}]}, "cluster.tiers.0.sise: is not a field here"),
    ("described", {"chip": CHIP | {"rows": 8}}, "cluster.chip.rows: cannot be combined with kind gpu"),
    ("described", {"chip": CHIP | {"technology": "4nm"}}, "cluster.chip.technology: '4nm' is not in the catalogue"),
    ("described", {"chip": CHIP | {"hbm_bytes": 0, "hbm_bytes_per_s": 0, "shared_sram_bytes": "80 MiB"}},
     "hbm_bytes_per_s: is 0 and no SRAM has a bandwidth"),
]  # fmt: skip

#: Framework, file, plan, and what it cannot run.
FRAMEWORKS: list[tuple[str, str, dict[str, Any], str]] = [
    ("megatron", "dense", {"pipeline_schedule": "gpipe"}, "plan.pipeline_schedule: is gpipe"),
    ("megatron", "dense", {"pipeline_schedule": "zb_h1"}, "it should be one of 1f1b, interleaved"),
    ("megatron", "dense", {"zero_stage": 3}, "plan.zero_stage: is 3 with a pipeline"),
    ("megatron", "dense", {"recompute": ["mixer_norm"]}, "plan.recompute: lists mixer_norm"),
    ("megatron", "interleaved", {"micro_batch": 16}, "plan.micro_batch: makes 1 micro-batches for 4 interleaved"),
    ("torchtitan", "sharded", {"zero_stage": 1}, "plan.zero_stage: is 1"),
    ("torchtitan", "sharded", {"axis_order": "tp-cp-pp-dp"}, "plan.axis_order: is tp-cp-pp-dp"),
    ("torchtitan", "sharded", {"context_parallel": 8, "context_kind": "ulysses"}, "plan.context_kind: is ulysses"),
    ("fsdp", "context", {}, "plan.zero_stage: is 1"),
    ("deepspeed", "dense", {}, "plan.pipeline_parallel: is 2"),
    ("deepspeed", "dense", {"pipeline_parallel": 1, "data_parallel": 8}, "plan.sequence_parallel: is true"),
    ("deepspeed", "dense", {"pipeline_parallel": 1, "data_parallel": 8, "sequence_parallel": False},
     "plan.recompute: is selective"),
    ("deepspeed", "mixture", {"pipeline_parallel": 1, "sequence_parallel": False, "expert_tensor_parallel": 2},
     "plan.expert_tensor_parallel: is 2"),
    ("deepspeed", "context", {"sequence_parallel": False, "zero_group": None}, "plan.context_kind: is ring"),
    ("maxtext", "sharded", {"recompute": "none"}, "plan.recompute: is none"),
    ("maxtext", "sharded", {"pipeline_parallel": 2}, "plan.pipeline_schedule: is 1f1b"),
    ("maxtext", "uneven", {"pipeline_schedule": "gpipe"}, "job.precision: is fp16"),
]  # fmt: skip


def refused(refusal, document: Document) -> str:
    return refusal(task_of, document, "case.yaml")


@pytest.mark.parametrize(("name", "changes", "named"), CONTRADICTIONS, ids=[c[2][:40] for c in CONTRADICTIONS])
def test_a_plan_that_contradicts_itself_or_its_model(name, changes, named, refusal):
    assert named in refused(refusal, with_changes(PLAN_FILES[name], **changes))


@pytest.mark.parametrize(("name", "cluster", "named"), CLUSTERS, ids=[c[2][:40] for c in CLUSTERS])
def test_a_cluster_that_cannot_be(name, cluster, named, refusal):
    assert named in refused(refusal, with_changes(PLAN_FILES[name], cluster=cluster))


@pytest.mark.parametrize(
    ("framework", "name", "plan", "named"), FRAMEWORKS, ids=[f"{f[0]} {f[3][:30]}" for f in FRAMEWORKS]
)
def test_a_plan_the_framework_cannot_run(framework, name, plan, named, refusal):
    document = with_changes(PLAN_FILES[name], cluster={"framework": framework}, plan=plan)
    sentence = refused(refusal, document)
    assert named in sentence
    assert framework in sentence
    assert "does not run" in sentence


def test_uneven_stages_where_a_framework_has_none(refusal):
    document = with_changes(
        PLAN_FILES["dense"],
        job={"model": model(7)},
        cluster={"framework": "megatron-2022"},
    )
    assert "plan.layers_per_stage: are uneven" in refused(refusal, document)


def test_a_mistake_inside_a_model_is_named_by_its_own_field(refusal):
    inner = model(8)
    inner["blocks"]["block"]["mixer"] = inner["blocks"]["block"]["mixer"] | {"kv_heads": 3}
    document = with_changes(PLAN_FILES["dense"], job={"model": inner})
    assert refused(refusal, document).startswith("case.yaml: job.model.blocks.block.mixer.kv_heads: ")
    document = with_changes(PLAN_FILES["dense"], job={"model": model(8) | {"hiden": 8}})
    assert "job.model.hiden: is not a field here; did you mean 'hidden'" in refused(refusal, document)


def test_experts_and_query_groups_whose_chips_do_not_nest(refusal):
    """Two chips share the key heads of six, three share an expert: neither group holds the other."""
    mixer = {"kind": "attention", "heads": 6, "kv_heads": 2, "head_dim": 64}
    experts = EXPERTS | {"size": 768, "shared_size": 768}
    document = with_changes(
        PLAN_FILES["mixture"],
        job={"model": model(8, mixer=mixer, feed_forward=experts), "seq_len": 6144},
        cluster={"chips": 12, "tiers": [TIERS[0] | {"size": 12}]},
        plan={"tensor_parallel": 6, "expert_tensor_parallel": 3, "expert_parallel": 2},
    )
    assert "plan.expert_tensor_parallel: groups of 2 and 3 chips" in refused(refusal, document)


def test_groups_that_share_state_and_sequences_without_nesting(refusal):
    """Of six chips two share a sequence and three a copy of the state: neither group holds the other."""
    document = with_changes(
        PLAN_FILES["described"],
        job={"global_batch": 6},
        cluster={"chips": 6, "framework": "megatron"},
        plan={"tensor_parallel": 1, "context_parallel": 2, "zero_group": 3},
    )
    assert "plan.zero_group: makes groups of 2 and 3 chips, which do not nest" in refused(refusal, document)


def test_a_broken_file_a_plan_names_is_named_itself(refusal, tmp_path):
    (tmp_path / "model.yaml").write_text("name: x\nhiden: 8\n")
    document = with_changes(PLAN_FILES["dense"], job={"model": "model.yaml"})
    path = tmp_path / "model.yaml"
    assert f"case.yaml: {path}: hiden" in refusal(task_of, document, "case.yaml", tmp_path)
    document = with_changes(PLAN_FILES["dense"], job={"model": "absent.yaml"})
    assert f"{tmp_path / 'absent.yaml'}: cannot be read" in refusal(task_of, document, "case.yaml", tmp_path)


def test_chips_and_clusters_may_stand_in_files_beside_the_plan(tmp_path):
    import yaml

    (tmp_path / "chip.yaml").write_text(yaml.safe_dump(CHIP | {"tiers": TIERS}))
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump({"name": "ours", "chip": CHIP, "chips": 32, "tiers": TIERS}))
    for cluster in (
        {"chip": "chip.yaml", "tiers": None},
        {"chip": "chip.yaml"},
        {"chip": None, "chips": None, "tiers": None, "name": "ours.yaml"},
    ):
        document = with_changes(PLAN_FILES["described"], cluster=cluster)
        task = task_of(document, "case.yaml", tmp_path)
        assert (task.cluster.chip.name, task.cluster.chips) == ("mine", 32)
        assert [tier.size for tier in task.cluster.tiers] == [8, 32]
