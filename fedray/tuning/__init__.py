"""Sweeps: Optuna proposes, fedray trains, and no training is done twice.

`sweep` reads the file, `space` turns values into scenarios, `objectives` says what a training is worth, `training` runs
one (in whatever process), `drive` asks, trains, looks up and tells, `leave` and `page` write what stays; `start` is the
whole of it.
"""
