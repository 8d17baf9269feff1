"""The verbs, values and names of `mindspore.Model` and `RecModel`, over the public ones of `Trainer`."""
