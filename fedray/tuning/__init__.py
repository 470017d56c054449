"""Runs sweeps, which search good values of scenario keys. Optuna proposes values, and fedray trains with them.

`sweep` reads the sweep file. `space` turns values into scenarios, and computes the objectives of a training. `trial`
runs the search. It takes trials from Optuna, has a worker train each trial unless an equal training exists, and reports
the values to Optuna. `optuna_study` opens the storage, the study and its samplers. `page` draws the report. `tune` runs
a whole sweep.
"""
