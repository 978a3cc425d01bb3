"""Reproducing the paper: one module per figure or theorem, with its runs, claims and figure.

Run ``python -m reproduction --help``.
"""
