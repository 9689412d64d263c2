"""A watch inside other people's training loops, and what it sees in their trackers.

lightning      a callback for Lightning's Trainer
huggingface    a callback for the Trainer of transformers
accelerate     a watch of what an Accelerator prepared
session        what the two callbacks share
sinks          W&B, TensorBoard, MLflow, or any function: about twenty numbers and one picture

Each is imported by name, and only then imports the library it is for.
"""
