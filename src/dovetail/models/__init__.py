"""Model description → graph: parametric transformer, Hugging Face configs, catalogue, Job."""

from dovetail.models.build import model_graph, prediction_parameters
from dovetail.models.catalogue import catalogue_name, from_huggingface, load, names, to_yaml
from dovetail.models.job import Job
from dovetail.models.model import Model
from dovetail.models.summary import ModelSummary, summarise

__all__ = [
    "Job",
    "Model",
    "ModelSummary",
    "catalogue_name",
    "from_huggingface",
    "load",
    "model_graph",
    "names",
    "prediction_parameters",
    "summarise",
    "to_yaml",
]
