"""Faults on purpose: kills, damage, hostile files, wrong calls, bad numbers, bad disks.

`python -m campaigns --length short` runs every kind and prints how many trials passed.
"""
