"""Iteration times of decentralized training and of its peers, interleaved in one run on the same machine."""
