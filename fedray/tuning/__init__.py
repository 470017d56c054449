"""Runs sweeps, which search for good values of scenario keys. Optuna proposes values, and fedray trains with them.

`sweep` reads the sweep file. `space` turns values into scenarios, and computes the objectives of a training. `trial`
runs the search. It takes trials from Optuna, and reports their values to Optuna. A worker trains each trial unless an
equal training exists. `optuna_study` opens the storage, the study and its samplers. `page` draws the report. `tune`
runs a whole sweep.
"""
