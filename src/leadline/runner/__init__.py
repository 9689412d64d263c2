"""The runner: attach Leadline to an unmodified training program.

program        run a script or a module in this process exactly as Python would
tape           the torch calls of a step, outside and around the modules
step_slice     those of them that the loss depends on
replayed       a model and a loss that make them again
tape_case      the Case of a step: model, batch, loss and optimizers
gathered_step  the batches of the first steps, and the state in which the first one begins
step_check     the check of such a step: how long it may take, and who is told
rates          the learning rate that a schedule leads to
collectives    passes in one process of several
attachment     what is done at which step: find, check, watch
"""
