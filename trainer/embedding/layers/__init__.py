"""The cells that networks use, the row optimizers, and the tables' part of the training graph."""
