"""Gossamer: decentralized deep learning. Many workers, one model, each averaging with a few neighbours."""

__version__ = "0.1.0"
