"""`tenuto bench`: the numbers we promise, measured on this machine.

`hashing`, `pooling` and `disk` each give figures; `result` says on what machine; `command` shows and keeps them.
One more bench is one more function in the table in `command`.
"""
