"""A real job under supervisors that the whole platform repairs: for the demo, the benches and the tests.

`crew` starts it, `watch` reads what crosses the topics meanwhile, `story` makes one account of a recovery
from it, `registry` asks the database.
"""
