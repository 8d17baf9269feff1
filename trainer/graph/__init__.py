"""Compiled programs: the training step, its builder, precision, boost and losses.

Docstrings of this package use these terms:

- program: a graph that MindSpore has compiled from a cell, for one set of input shapes and dtypes;
- graph code: a function that MindSpore compiles as a part of a program;
- chunk: the batches that one call of a program processes, usually one;
- micro-batch: a batch whose gradients are accumulated for a later update;
- dense parameters: all trained parameters except the rows of sparse tables;
- several tasks: the loss is a `MultiTaskLoss`;
- B: number of rows of a batch; T: number of tasks.
"""
