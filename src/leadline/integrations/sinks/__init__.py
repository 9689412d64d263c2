"""Trackers that a watch can feed. Each wraps what you made yourself: a run, a writer, a client."""

from leadline.integrations.sinks.function import FunctionSink
from leadline.integrations.sinks.mlflow import MLflowSink
from leadline.integrations.sinks.sink import Feed, Sink
from leadline.integrations.sinks.tensorboard import TensorBoardSink
from leadline.integrations.sinks.trackio import TrackioSink
from leadline.integrations.sinks.wandb import WandbSink

__all__ = ["Feed", "FunctionSink", "MLflowSink", "Sink", "TensorBoardSink", "TrackioSink", "WandbSink"]
