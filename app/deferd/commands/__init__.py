"""The client's commands of the command line: a shell's way to call a service. They import nothing of the service.

`parser` declares them all, once. What a command does is in the module that the declaration names, which is imported
when the command runs, so that each costs only what it needs.
"""
