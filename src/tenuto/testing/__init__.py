"""For tests of code that uses tenuto, ours included: fakes, faults, contract suites, hypothesis strategies.

Takes your `Policy`, your `Store`, or tenuto's own. Gives suites they must pass (`policy_contract`, `store_contract`,
`runtime_contract`), a store in memory, stores that fail or block when told (`faults`) or are as slow as is wished
(`pacing`), a device without an engine, requests without a scheduler, workers that move block names instead of bytes
(`simulation`), a NATS broker (`nats_broker`), and the one table of KV memories (`kvshapes`).
Never: sleeps or reads the clock but through what it is given; is imported by the rest of the package, but for
`kvshapes`, `pacing` and `nats_broker` by `tenuto bench`.
`*_contract` needs pytest, `strategies` needs hypothesis.
"""
