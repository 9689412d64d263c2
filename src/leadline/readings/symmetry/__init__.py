"""Scale symmetries: which parameters can be rescaled without changing the network, and where weight decay is inert.

These read a trace, without torch:
    equations      one unknown per value of the trace, and the equations between them
    scale_rules    how scale passes through each op
    lost_biases    biases that a later op removes
    system         solves the equations exactly over the rationals, and makes a readable basis of the solutions
    cone           which parameters can shrink while no other grows, and the smallest penalty
    reading        all of that as a record
    equilibrium    where weight decay takes a scale-invariant weight

These touch the model:
    exact_model    runs the model in double precision and without eps
    verification   confirms the group by numbers
    rescale        `leadline.symmetries`, `leadline.shrink` and `leadline.balance`
"""
