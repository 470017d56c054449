"""Sweeps: Optuna proposes values, fedray trains, and no training is done twice.

`sweep` reads the sweep file. `space` turns values into scenarios, and computes the objectives of a training. `trial`
runs one training in a worker. It also searches: it asks Optuna for trials, has them trained or looks up their values,
and reports the values to Optuna. `optuna_study` opens the storage, the study and its samplers. `page` draws the report.
`tune` runs a whole sweep.
"""
