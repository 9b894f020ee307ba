"""Geometry of extents, buffers, and the movement between an engine's pages and extents.

Takes shapes and strides. Gives an `ExtentLayout` (bytes of one block on one rank), a `HostArena` of page-aligned
slots (pinned and shared beside a GPU), the header codec with its sums, and `PagedKV`, which gathers engine pages into
extents and scatters them back.
Never: decides what to keep or where; opens files.
"""
