"""What a row means: its model, its plan, its cluster."""

from __future__ import annotations

import pytest
from small_runs import MIXTURE, reason, run

from dovetail.models.attention import Attention
from dovetail.models.feed_forward import Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION
from dovetail.models.state_space import StateSpace
from dovetail.profile.modules import MODULES


def test_published_models_are_taken_where_name_and_sizes_agree(tmp_path):
    sizes = {
        "model": "Qwen3_30B_a3B", "layers": "48", "hidden": "2048", "ffn_hidden": "6144", "gated_mlp": "1",
        "heads": "32", "kv_heads": "4", "head_dim": "128", "vocab": "151936", "experts": "128", "top_k": "8",
        "moe_other": "expert_ffn=768", "attention": "fused",
    }  # fmt: skip
    model = run(tmp_path, **sizes).task.job.model
    assert model.name == "qwen3-30b-a3b"
    assert model.vocab % 256 == 0
    cut = run(tmp_path, **sizes | {"model": "Qwen3-30B-A3B (4 layers)", "layers": "4"}).task.job.model
    assert (cut.name, cut.num_layers) == ("qwen3-30b-a3b", 4)
    other = run(tmp_path, **sizes | {"kv_heads": "8"}).task.job.model
    assert (other.name, other.source) == ("Qwen3_30B_a3B", "")
    assert run(tmp_path, **sizes | {"layers": "4"}).task.job.model.name == "Qwen3_30B_a3B"


def test_a_known_hybrid_needs_no_sizes(tmp_path):
    blank = dict.fromkeys(("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "head_dim", "vocab"), "")
    model = run(tmp_path, **blank, model="Nemotron_3_Nano", attention="fused").task.job.model
    assert model.name == "nemotron-3-nano-30b-a3b"
    assert any(isinstance(block.mixer, StateSpace) for block in model.blocks.values())
    assert "not in the catalogue" in reason(tmp_path, **blank, model="Unheard-of-7B")


def test_a_mixture_with_latent_attention_is_built_from_its_sizes(tmp_path):
    model = run(tmp_path, **MIXTURE | {"multi_token_prediction": "yes"}).task.job.model
    assert [(part.blocks, part.repeat) for part in model.layers] == [(("dense",), 1), (("sparse",), 7)]
    mixer, experts = model.blocks["sparse"].mixer, model.blocks["sparse"].feed_forward
    assert isinstance(mixer, LatentAttention)
    assert (mixer.query_rank, mixer.kv_rank, mixer.nope_dim, mixer.rope_dim, mixer.value_dim) == (256, 128, 64, 32, 64)
    assert isinstance(experts, Mixture)
    assert (experts.experts, experts.top_k, experts.size, experts.shared_size) == (32, 4, 512, 1024)
    assert model.multi_token_prediction is not None
    assert run(tmp_path, **MIXTURE).task.job.model.multi_token_prediction is None


def test_heads_may_be_wider_than_the_stream(tmp_path):
    mixer = run(tmp_path, gated_mlp="1", head_dim="128").task.job.model.blocks["dense"].mixer
    assert isinstance(mixer, Attention)
    assert mixer.heads * mixer.head_dim == 2048


def test_heads_that_do_not_share_their_width_are_the_nearest_number_that_does(tmp_path):
    """96 heads of 14,336, as the file has a log of BLOOM: no framework runs it, and the products are of the width."""
    stated = {"hidden": "14336", "ffn_hidden": "57344", "heads": "96", "kv_heads": "96"}
    found = run(tmp_path, **stated, head_dim=str(14336 / 96))
    mixer = found.task.job.model.blocks["dense"].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim) == (112, 112, 128)
    assert found.assumptions == ("96 heads do not share a width of 14336: read as 112 of 128",)
    # what it computes is what any number of heads of that width computes
    other = run(tmp_path, **stated | {"heads": "64", "kv_heads": "64"}, head_dim="224")
    flops = [each.task.job.graph().forward_flops(64, 1024, causal=True) for each in (found, other)]
    assert flops[0] == flops[1]
    assert other.assumptions == ()
    assert "whole width" in reason(tmp_path, **stated, head_dim="149.4")
    assert "whole width" in reason(tmp_path, **stated | {"kv_heads": "8"}, head_dim=str(14336 / 96))


def test_queries_without_a_latent_come_from_the_stream(tmp_path):
    text = "expert_ffn=512 shared_ffn=1024 dense_layers=1 MLA(q_lora=0,kv_lora=128,qk=64+32,v=64)"
    mixer = run(tmp_path, **MIXTURE | {"moe_other": text}).task.job.model.blocks["sparse"].mixer
    assert isinstance(mixer, LatentAttention)
    assert (mixer.query_rank, mixer.kv_rank) == (None, 128)
    lite = {
        "model": "DeepSeek-V2-Lite 16B", "layers": "27", "hidden": "2048", "ffn_hidden": "10944", "gated_mlp": "1",
        "heads": "16", "kv_heads": "16", "head_dim": "128", "vocab": "102400", "experts": "64", "top_k": "6",
        "moe_other": "expert_ffn=1408 shared_ffn=2816 dense_layers=1 MLA(q_lora=0,kv_lora=512,qk=128+64,v=128)",
    }  # fmt: skip
    assert run(tmp_path, **MIXTURE | lite).task.job.model.name == "deepseek-v2-lite"


def test_degrees_that_count_cores_are_read_as_chips(tmp_path):
    """32 NeuronCores of a tensor-parallel group are the 16 chips of an instance."""
    cores = {
        "framework": "NeuronX Distributed", "chip": "trainium1", "chips_per_node": "16", "num_chips": "64", "dp": "2",
        "attention": "fused", "inter_node_gbps_per_node": "800", "tp": "32",
    }  # fmt: skip
    plan = run(tmp_path, **cores).task.plan
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (16, 2, 2)
    assert run(tmp_path, **cores | {"framework": "Megatron-LM", "tp": "16"}).task.plan.tensor_parallel == 16
    assert "multiple of 2" in reason(tmp_path, **cores | {"tp": "1", "dp": "64"})


def test_experts_sharded_over_more_chips_than_there_are(tmp_path):
    """LAER-MoE shards its experts over 32 chips, and each chip gathers a quarter of them."""
    cells = {"ep": "32", "num_chips": "32", "tp": "1", "pp": "1", "dp": "32", "experts": "8", "top_k": "2"}
    plan = run(tmp_path, **MIXTURE | cells, framework="Galvatron/LAER-MoE").task.plan
    assert (plan.expert_parallel, plan.data_parallel) == (4, 32)
    assert "expert_parallel" in reason(tmp_path, **MIXTURE | cells, framework="Megatron-LM")


@pytest.mark.parametrize(
    ("framework", "notes", "gradients", "parameters"),
    [
        ("MindSpeed-LLM", "", False, False),
        ("MindSpeed-LLM", "overlap-grad-reduce; 910B", True, False),
        ("nanotron 0.5", "", None, False),
        ("Megatron-LM", "", None, None),
    ],
)
def test_what_trainers_do_not_overlap(tmp_path, framework, notes, gradients, parameters):
    plan = run(tmp_path, framework=framework, notes=notes, attention="fused", precision="bf16", zero="1").task.plan
    assert (plan.overlap_gradients, plan.overlap_parameters) == (gradients, parameters)


def test_context_parallelism_of_ascend_is_what_its_script_names(tmp_path):
    cells = {"framework": "MindSpeed-LLM", "attention": "fused", "cp": "2", "dp": "2"}
    kinds = [run(tmp_path, **cells, notes=f"cp algorithm {name}_cp_algo").task.plan for name in ("ulysses", "megatron")]
    assert [plan.context_kind for plan in kinds] == ["ulysses", "ring"]


def test_experts_fold_over_tensor_parallel_chips(tmp_path):
    plan = run(tmp_path, **MIXTURE, ep="8", sequence_parallel="yes").task.plan
    assert (plan.expert_parallel, plan.expert_tensor_parallel) == (8, 1)
    assert "expert_parallel" in reason(tmp_path, **MIXTURE, ep="32")


def test_sharded_state_lies_on_context_parallel_chips_too(tmp_path):
    plan = run(tmp_path, cp="2", dp="2", zero="1", zero_group="2").task.plan
    assert plan.zero_group == 4
    assert run(tmp_path, zero="1", zero_group="2").task.plan.zero_group == 2
    assert "zero_group" in reason(tmp_path, zero="1", zero_group="3")


@pytest.mark.parametrize(
    ("framework", "layers", "pp", "vp", "expected"),
    [
        ("Megatron-LM", "10", "4", "1", (2, 3, 3, 2)),  # embedding and head count as a layer each
        ("Megatron-Bridge / NeMo 26.04", "13", "4", "1", (4, 4, 4, 1)),
        ("Megatron-LM", "6", "2", "4", (0, 1, 1, 1, 1, 1, 1, 0)),
        ("Megatron-DeepSpeed", "13", "4", "1", (3, 4, 3, 3)),
    ],
)
def test_uneven_stages_are_those_of_the_framework(tmp_path, framework, layers, pp, vp, expected):
    dp = str(8 // int(pp))
    sizes = {"layers": layers, "pp": pp, "vp": vp, "dp": dp, "attention": "fused"}
    assert run(tmp_path, framework=framework, **sizes).task.plan.layers_per_stage == expected


def test_fewer_microbatches_than_stages_and_tensor_parallel_across_nodes(tmp_path):
    plan = run(tmp_path, pp="8", dp="1", global_batch="4").task.plan
    assert plan.num_microbatches == 2
    found = run(tmp_path, tp="16", pp="1", dp="1")
    assert found.task.plan.tensor_parallel == 16 > found.task.cluster.tiers[0].size


@pytest.mark.parametrize(
    ("stated", "written", "choice", "share"),
    [
        ("none", "", "none", 1.0),
        ("selective", "selective (attention core only)", "selective", 1.0),
        ("full", "full block recompute_num_layers=1", "full", 0.25),
        ("selective", "selective (every other layer)", "full", 0.5),
        ("selective", "selective (ratio not stated)", "full", 1.0),
        ("selective", "selective (fused SDPA with recompute)", "none", 1.0),
        ("selective", "remat_policy=custom", "full", 1.0),
    ],
)
def test_recompute_is_read_as_its_framework_means_it(tmp_path, stated, written, choice, share):
    plan = run(tmp_path, recompute=stated, recompute_as_written=written).task.plan
    assert (plan.recompute, plan.recompute_share) == (choice, share)


@pytest.mark.parametrize(
    ("written", "again", "kept"),
    [
        ('selective modules ["mlp"]', {"mlp"}, {"query", "mixer_norm", "moe"}),
        ('selective modules ["mla_up_proj", "moe_act"]', {"mla_up_proj", "moe_act"}, {"layernorm", "moe"}),
        ("selective norm,act", {"mixer_norm", "expert.activation"}, {"router", "mlp.up", "attention"}),
        ("selective (op)", {"mixer_norm", "mlp.activation"}, {"attention", "query_latent"}),
        ("remat_policy=minimal", {"attention", "mixer_norm"}, {"output", "query_content", "mlp.up"}),
    ],
)  # fmt: skip
def test_menus_become_operators_and_modules(tmp_path, written, again, kept):
    task = run(tmp_path, **MIXTURE, recompute="selective", recompute_as_written=written).task
    names = task.plan.recompute
    assert isinstance(names, tuple)
    blocks = [layer for name, layer in task.job.graph().layers.items() if name not in (EMBEDDING, HEAD, PREDICTION)]
    modules = [MODULES[name] for name in names if name in MODULES]
    meant = {*names, *(operator for module in modules for layer in blocks for operator in module.operators(layer))}
    assert again <= meant
    assert not kept & meant
    assert not {"embedded", "logits", "loss"} & set(names)


def test_the_network_is_the_rows_or_the_chips(tmp_path):
    stated = run(tmp_path, inter_node_gbps_per_node="3200")
    assert stated.task.cluster.tiers[1].bytes_per_s == pytest.approx(50e9)
    assert stated.assumptions == ()
    assumed = run(tmp_path, inter_node_gbps_per_node="")
    assert assumed.task.cluster.tiers[1].bytes_per_s == assumed.task.cluster.chip.tiers[1].bytes_per_s
    assert "network" in assumed.assumptions[0]
    rack = run(
        tmp_path, chip="gb200", chips_per_node="4", inter_node_gbps_per_node="1600", num_chips="256", dp="32", pp="4"
    )
    assert [tier.size for tier in rack.task.cluster.tiers] == [64, 256]
    assert rack.task.cluster.tiers[1].bytes_per_s == pytest.approx(50e9)


def test_slices_of_a_pod_are_joined_by_the_data_centre(tmp_path):
    pod = {
        "framework": "MaxText", "chip": "tpu-v5p", "chips_per_node": "4", "inter_node_gbps_per_node": "", "pp": "1",
        "num_chips": "256", "tp": "4", "dp": "64", "zero": "3", "precision": "bf16", "attention": "fused",
        "global_batch": "128",
    }  # fmt: skip
    whole = run(tmp_path, **pod, zero_group="64")
    assert [(tier.name, tier.shape) for tier in whole.task.cluster.tiers] == [("ici", (4, 8, 8))]
    halves = run(tmp_path, **pod, zero_group="32")
    assert [(tier.name, tier.size) for tier in halves.task.cluster.tiers] == [("ici", 128), ("dcn", 256)]
    assert halves.task.plan.zero_group == 32
    assert whole.assumptions == halves.assumptions == ()
