"""Races: every residual scheme trained on the same data with the same budget, at depths and rates of a grid.

tracks     what is trained on: text, digits as sequences, images; the models for them
entrants   a scheme, with one rate for all or with those of its depth law
stepping   Adam and SGD on parameters of several networks at once, each at its own rate
lanes      networks of one scheme and depth, of several rates and seeds, trained side by side
standings  the league table and the rate's sensitivity
transfer   how the best rate moves with depth
grid       the cells of a race
record     finished cells as a record of leadline.report.racing
race       the grid through an executor, and the record of it
"""
