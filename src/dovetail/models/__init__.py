"""Model description → graph: parametric transformer, Hugging Face configs, traced modules, catalogue, Job."""

from dovetail.models.build import model_graph, prediction_parameters
from dovetail.models.catalogue import catalogue_name, from_catalogue, load, model_from, names, save, to_yaml
from dovetail.models.importing import from_huggingface, from_torch
from dovetail.models.job import Job
from dovetail.models.model import Model
from dovetail.models.summary import ModelSummary, summarise
from dovetail.models.traced import AnyModel, TracedModel, described

__all__ = [
    "AnyModel",
    "Job",
    "Model",
    "ModelSummary",
    "TracedModel",
    "catalogue_name",
    "described",
    "from_catalogue",
    "from_huggingface",
    "from_torch",
    "load",
    "model_from",
    "model_graph",
    "names",
    "prediction_parameters",
    "save",
    "summarise",
    "to_yaml",
]
