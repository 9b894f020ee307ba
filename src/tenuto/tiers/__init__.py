"""A tier is a kind of place, a pool that says what is there, and a store that moves its bytes.

Takes slots and page-aligned buffers. Gives the failures of a batch, one per block that failed, with its cause.
Never: decides what to keep; serves bytes that were not verified.
"""
