"""`tenuto demo`: a real engine gets a real prompt back from host memory and from disk.

`command` is the parent: arguments, child processes, exit code. `child` runs in a process of its own
per stage: `model` writes the model once, `engine` asks it. `messages` is what the two say to each
other, `text` what is asked, `report` what is shown.
"""
