"""The main job: a real training job, one real fault, the verdict that the platform gives.

`launch` forks the ranks, `train` is what each rank runs, `faults` is the page on which the demo tells
one rank to misbehave, `inject` does it, `watch` waits for the incident, `main` ties them together.
Nothing here is used by the services.
"""
