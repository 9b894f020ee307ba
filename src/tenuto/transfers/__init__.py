"""Plans, and the engine that runs them.

`plan` is pure data: what to move from where to where, and after what. `engine` takes such transfers on a worker, runs
them on lanes (loads before stores, bounded), and gives back one result per transfer with the failures of single blocks.
`layered` runs loads and stores beside a forward pass, one layer after the other.
Never: decides what to move; retries behind the manager's back.
"""
