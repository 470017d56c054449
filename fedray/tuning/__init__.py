"""Sweeps: Optuna proposes values, fedray trains, and no training is done twice.

`sweep` reads the file, and `space` turns values into scenarios. `objectives` says what a training is worth. `trial`
runs one training in a worker. `search` asks Optuna for trials, has them trained or looks them up, and tells Optuna
their values; `optuna_study` is what Optuna stores. `page` draws what stays. `tune` puts it all together.
"""
