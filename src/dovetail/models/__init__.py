"""Model description → graph: parametric transformer, Hugging Face configs, catalogue, Job."""

from dovetail.models.build import model_graph, prediction_parameters
from dovetail.models.job import Job
from dovetail.models.model import Model

__all__ = ["Job", "Model", "model_graph", "prediction_parameters"]
