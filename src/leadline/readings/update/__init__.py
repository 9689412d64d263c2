"""What one optimizer step does to a model: the predicted and measured change of the loss, and the safe rates.

probe            runs passes and steps of a model and its optimizer, and restores both bit for bit
step_hooks       leaves out the hooks of an optimizer's step
tensor_sums      norms and inner products over lists of tensors
direction        the direction of the step, and its share per parameter, block and depth range
limits           the loss along the step, the stability limit, the safe rate and the warm-up
curvature        the largest curvature, by Lanczos iteration
reading          all of it as an `Update` record
rehearsal        a few real steps on the first batches
"""
