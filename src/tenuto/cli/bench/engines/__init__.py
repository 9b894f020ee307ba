"""Real engines, each alive in a process of its own, asked in turn: the ground of the benches `ttft` and `serving`.

Takes: what a variant is (`variants`), and requests as lines of JSON (`messages`). Gives: times measured where the
engine runs (`engine`, `pump`). Parent: `process`. Child: `child`. Never: two engines in one process, since connectors
are global to one, or two engines at work at the same time, since they share a GPU.
"""
