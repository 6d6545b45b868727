"""Sweeps: the same prompts at every point of a grid of settings, each answer compared with AR's.

It lives under `bench` since it is one: prompts, spreads and pairing in one run are the bench's.
"""
