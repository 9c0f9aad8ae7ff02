"""The images a model of `transformers` is traced with: one in each sequence, its encoder's result among the tokens."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportDeprecated=false
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.models.tracing.pytorch import nn, torch
from dovetail.models.tracing.recorder import Recorder

#: Patches along an image's edge, where a model takes images of any size: 512 pixels of the usual 16.
_EDGE = 32
#: Patches pooled into one token, along the edge of an image.
_POOLED_EDGE = 16
#: As many patches along an edge as are written out.
_MOST_EDGE = 512


@frozen
class Images:
    """What an image encoder is given: pixels without contents, and whole numbers with them."""

    pixels: tuple[int, ...]
    numbers: Mapping[str, Any]
    #: how large an image is, in words
    words: str


def images_of(module: Any, batch: int) -> tuple[Images, ...]:
    """The images a model may be given, by the arguments its encoder has; none where it has no encoder of images."""
    vision, encode = getattr(module.config, "vision_config", None), _encoder(module)
    if vision is None or encode is None:
        return ()
    named = inspect.signature(encode).parameters
    patch, channels = _number(vision, 16, "patch_size"), _number(vision, 3, "in_channels", "num_channels", "in_chans")
    if "image_grid_thw" in named:
        depth = channels * _number(vision, 1, "temporal_patch_size")
        grid = [[1, _EDGE, _EDGE]] * batch
        is_flat = not any(isinstance(each, nn.Conv2d) and each.kernel_size[0] == patch for each in module.modules())
        pixels = (depth * patch**2,) if is_flat else (depth, patch, patch)
        return (Images((batch * _EDGE**2, *pixels), {"image_grid_thw": grid}, _words(_EDGE * patch)),)
    if "image_position_ids" in named:
        edge = _POOLED_EDGE * _number(vision, 1, "pooling_kernel_size")
        if edge > _MOST_EDGE:
            raise InputError(
                "vision_config.pooling_kernel_size",
                f"makes {edge} patches an edge",
                f"it should be at most {_MOST_EDGE // _POOLED_EDGE}",
            )
        places = [[[column, row] for row in range(edge) for column in range(edge)]] * batch
        return (Images((batch, edge**2, channels * patch**2), {"image_position_ids": places}, _words(edge * patch)),)
    edge = _number(vision, _EDGE * patch, "image_size")
    sizes = {"image_sizes": [[edge, edge]] * batch} if "image_sizes" in named else {}
    # some take several images of a sequence, of which this is the first
    shapes = ((batch, channels, edge, edge), (batch, 1, channels, edge, edge))
    return tuple(Images(shape, sizes, _words(edge)) for shape in shapes)


def encoded(module: Any, images: Images, fake: Callable[..., Any], batch: int) -> Any:
    """The tokens that the encoder makes of the images, in as many rows as there are sequences."""
    dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
    given = {name: fake(None, torch.int64, name, contents=rows) for name, rows in images.numbers.items()}
    encode = _encoder(module)
    assert encode is not None
    out = encode(fake(images.pixels, dtype, "pixel_values"), **given)
    features = getattr(out, "pooler_output", out)
    rows = features if isinstance(features, torch.Tensor) else torch.cat(list(features))
    return rows.reshape(batch, -1, rows.shape[-1])


@contextmanager
def among_tokens(module: Any, features: Any, recorder: Recorder) -> Iterator[None]:
    """The next look-up of tokens has these in the places of some of them."""
    table = module.get_input_embeddings()
    look_up = table.forward

    def placed(*args: Any, **options: Any) -> Any:
        tokens = look_up(*args, **options)
        with recorder.paused():
            out = tokens.new_empty(tokens.shape)
        table.forward = look_up
        return recorder.note("placed", (tokens, features), {}, out)

    table.forward = placed
    try:
        yield
    finally:
        table.forward = look_up


def _encoder(module: Any) -> Callable[..., Any] | None:
    """What makes features of images."""
    for owner in (module, getattr(module, "model", None)):
        if (found := getattr(owner, "get_image_features", None)) is not None:
            return found
    return None


def _number(config: Any, default: int, *names: str) -> int:
    found = next((value for name in names if (value := getattr(config, name, None)) is not None), default)
    return int(found[0] if isinstance(found, list | tuple) else found)


def _words(edge: int) -> str:
    return f"with an image of {edge} x {edge} pixels in each sequence"
