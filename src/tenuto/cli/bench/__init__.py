"""`tenuto bench`: the numbers we promise, measured on this machine.

`hashing`, `pooling`, `disk`, `scheduler`, `ttft` and `serving` each give figures; the last two run whole engines
(`engines`). `result` says on what machine; `command` shows and keeps them. One more bench is one more function in the
table in `command`.
"""
