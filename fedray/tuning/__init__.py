"""Sweeps: Optuna proposes values, fedray trains, and no training is done twice.

`sweep` reads the sweep file, and `space` turns values into scenarios. `objectives` computes the values of a training.
`trial` runs one training in a worker. `search` asks Optuna for trials, has them trained or looks them up, and tells
Optuna their values. `optuna_study` opens the storage, the study and its samplers. `page` draws the report. `tune` puts
it all together.
"""
