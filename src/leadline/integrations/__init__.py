"""Watches inside other training loops, and sinks for experiment trackers.

lightning      a callback for Lightning's Trainer
huggingface    a callback for the Trainer of transformers
accelerate     a watch for what an Accelerator prepared
sinks          W&B, TensorBoard, MLflow, Trackio or any function: about twenty numbers and one picture

Each module imports its library only when it is imported itself.
"""
