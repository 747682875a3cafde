"""The colocated experiment: trainers and engines that share slots, in one RL loop."""

from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.run import run_experiment

__all__ = ["ExperimentConfig", "run_experiment"]
