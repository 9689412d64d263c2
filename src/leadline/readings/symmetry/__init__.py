"""Scale symmetries: which parameters can be rescaled without changing the network, so where weight decay is inert.

walk       one pass over the ops of a trace: each says how the scale of its output follows from that of its inputs
system     the linear equations that come of it, solved exactly over the rationals
basis      their solutions, as few parameters at a time as possible, in whole numbers
cone       which parameters can shrink while no other grows
penalty    what the sum of squares comes down to along the free directions
reading    all of that, as a record: torch-free, from the trace alone
confirm    the same twice more by numbers: move along the group, and ask the gradients          ─┐ these touch
live       `symmetries(model, inputs)`; rescale has `shrink` and `balance`                       ┘ the model
"""
