"""The runner: attach Leadline to an unmodified training program.

program     run a script or a module in this process exactly as Python would
tape        the torch calls of a step, outside and around the modules, so that the step can be repeated
tape_case   the Case of a step: its model, its batch, and its loss as a function
attachment  what is done at which step: find, check, watch
"""
