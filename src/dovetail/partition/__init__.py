"""Layers to pipeline stages, with what each layer recomputes: the chain problem and the layer problem."""
