"""Training: the objective (arXiv 2604.07023, section on training), the data and the trainer.

`objective` has the losses by their public names; `plain` is the oracle that `lean` is compared with.
"""
