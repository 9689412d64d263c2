"""The public page of tracker sinks: each takes the run, writer or client that you created."""

from leadline.monitor.tracker_feed import Feed, Sink
from leadline.monitor.trackers.function import FunctionSink
from leadline.monitor.trackers.mlflow import MLflowSink
from leadline.monitor.trackers.tensorboard import TensorBoardSink
from leadline.monitor.trackers.trackio import TrackioSink
from leadline.monitor.trackers.wandb import WandbSink

__all__ = ["Feed", "FunctionSink", "MLflowSink", "Sink", "TensorBoardSink", "TrackioSink", "WandbSink"]
