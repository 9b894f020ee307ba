"""`tenuto inspect DIR`: what a disk root holds, and whether every byte of it is whole.

`survey` looks, `verification` reads every listed block again, `report` shows. Nothing is written, and no lock is taken
that an engine needs: `holders` reads who lives from the kernel's list of locks.
"""
