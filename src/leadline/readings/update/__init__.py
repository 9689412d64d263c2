"""What one optimiser step does to a model: predicted and measured change of the loss, of the function, safe rates.

keeping    an optimiser is lent out and given back bit for bit
borrowed   model and optimiser together: losses, gradients, moving along a step
line       the loss along the step
places     where on the depth axis the step happens
limits     the stability limit, a safe rate, a warm-up
reading    all of it as an Update
"""
