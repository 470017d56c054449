"""The Ray runtime: a coordinator actor, client actors, and what happens when they die. Only this folder imports Ray."""
