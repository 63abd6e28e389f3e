"""A model -> the same model, made cheaper by substitutions, for whoever stays on their runtime: `optimized`."""

from fissile.optimizer.model import Optimized, content_of, fits, optimized

__all__ = ["Optimized", "content_of", "fits", "optimized"]
