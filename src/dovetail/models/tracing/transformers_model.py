"""Builds the real `transformers` class of a config.json without weights, and records its forward pass.

Attention, experts and scans are recorded as the one operator that training kernels make of them, by the interfaces
`transformers` has for such kernels.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportDeprecated=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from dovetail.errors import InputError, quoted
from dovetail.models.tracing.pytorch import torch
from dovetail.models.tracing.record import Recording
from dovetail.models.tracing.trace import Trace
from dovetail.models.tracing.transformers_images import Images, among_tokens, encoded
from dovetail.models.tracing.transformers_kernels import OURS, confined, kernels, registered, transformers

#: Classes to look a config up in, by what it is for.
_PAIRED = "AutoModelForSeq2SeqLM"
_CLASSES = ("AutoModelForCausalLM", "AutoModelForMaskedLM", _PAIRED, "AutoModelForImageTextToText", "AutoModel")


#: What a config names that is not in it: code to run, weights to fetch, kernels to load.
_REFERENCES = frozenset({"auto_map", "custom_code", "quantization_config", "_name_or_path", "name_or_path"})

#: As many modules as are built: a model of a thousand layers of unlike operators has fewer.
MOST_MODULES = 50_000


def build(config: Mapping[str, Any], where: str) -> Any:
    """The model a config describes, on the meta device; refuses what `transformers` does not have."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        what = f"is {quoted(kind)}, which transformers {transformers.__version__} does not have"
        raise InputError(f"{where}: model_type", what, "a newer transformers may have it")
    fields = without_references(config)
    reason = "it has no such model with a head"
    try:
        with ExitStack() as stack:
            stack.enter_context(confined())
            stack.enter_context(_bounded(where))
            settings = transformers.AutoConfig.for_model(**fields)
            for make in _makers(fields, settings):
                for attention in (OURS, "sdpa", "eager"):
                    try:
                        with torch.device("meta"), registered(None):
                            return make(settings, dtype=torch.bfloat16, attn_implementation=attention)
                    except InputError:
                        raise
                    except (ValueError, KeyError) as error:  # a class that knows some kernels alone, or another kind
                        reason = f"{type(error).__name__}: {error}"
    except InputError:
        raise
    except Exception as error:  # of any kind: it is the config's
        reason = f"{type(error).__name__}: {error}"
    what = f"describes a {kind}, which transformers {transformers.__version__} cannot build"
    raise InputError(where, f"{what} ({quoted(reason, 200)})", "correct it, or trace the module")


def without_references(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what names code or weights elsewhere, at any depth."""
    return {
        name: without_references(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in _REFERENCES
    }


@contextmanager
def _bounded(where: str) -> Iterator[None]:
    """Refuses a config that asks for more modules than any model has, before they are all built."""
    built = 0

    def count(*_: Any) -> None:
        nonlocal built
        built += 1
        if built > MOST_MODULES:
            raise InputError(where, f"describes more than {MOST_MODULES:,} modules", "it should have fewer layers")

    hook = torch.nn.modules.module.register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _makers(fields: Mapping[str, Any], settings: Any) -> Iterator[Callable[..., Any]]:
    """What makes a model of a config: the classes it names, then those for each use."""
    named = fields.get("architectures")
    for name in named if isinstance(named, list | tuple) else ():
        factory = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(factory, type) and issubclass(factory, transformers.PreTrainedModel):
            yield factory._from_config
    paired = fields.get("is_encoder_decoder", getattr(settings, "is_encoder_decoder", False))
    for name in sorted(_CLASSES, key=lambda name: name != _PAIRED if paired else 0):
        yield getattr(transformers, name).from_config


def record_tokens(
    module: Any, batch: int, seq: int, *, images: Images | None = None, every_layer: bool = False,
    apart: frozenset[str] = frozenset(),
) -> Trace:  # fmt: skip
    """The forward pass over token ids, up to the logits, those of images among them; as `record` otherwise."""
    recording = Recording(module, batch, seq, every_layer=every_layer, apart=apart)

    def call(model: Any, fake: Callable[..., Any]) -> Any:
        if images is None:
            return tokens(model, fake)
        features = encoded(model, images, fake, batch)
        with among_tokens(model, features, recording.recorder):
            return tokens(model, fake)

    def tokens(model: Any, fake: Callable[..., Any]) -> Any:
        ids = fake((batch, seq), torch.int64, "tokens")
        given: dict[str, Any] = {"input_ids": ids}
        config = model.config
        if getattr(config, "is_encoder_decoder", False):
            given["decoder_input_ids"] = fake((batch, seq), torch.int64, "decoder_tokens")
        out = model(**given, use_cache=False, return_dict=True) if _has_cache(model) else model(**given)
        logits = getattr(out, "logits", None)
        return logits if logits is not None else out[0]

    with confined(), kernels(module, recording.recorder, batch):
        return recording.run(call)


def _has_cache(model: Any) -> bool:
    return hasattr(model.config, "use_cache") or hasattr(model.config.get_text_config(), "use_cache")
