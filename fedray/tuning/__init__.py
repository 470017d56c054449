"""Sweeps: Optuna proposes values, fedray trains, and no training is done twice.

`sweep_file` reads the file and `space` turns values into scenarios. `objectives` says what a training is worth. `trial`
runs one training in a worker, and `workers` are where trainings run. `search` asks Optuna for trials, has them trained
or looks them up, and tells Optuna their values; `state` is what it knows meanwhile, `optuna_study` what Optuna stores.
`results` and `page` write what stays. `tune` puts it all together.
"""
