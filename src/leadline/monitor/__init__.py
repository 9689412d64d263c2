"""The monitor: watch a training run within an overhead budget without changing one bit of it.

watch            the hooks on the optimizers, the public object
arguments        validation of its arguments, actions on an alert
steps            one step after another: measured, charged, recorded
step_record      one step in progress; light steps, of which only the loss is recorded
budget           what to measure at which step
parameters       norms of gradients, updates and weights of every parameter
norms            fused, exact and sharded norms
block_exits      second moments of blocks between two samples
sampler, replay  traces of real passes; of compiled ones by repeating them
step_problems    non-finite losses, skipped and missing steps
mixed_precision  the GradScaler; clipping: what clipping removes, and interventions
non_finite       the op that produced the first NaN
journal          history, alerts and events; alerts: when an alert is raised and cleared
distributed      several processes; hooks: hooks that do not outlive the watch
layout           what the numbers of a vector belong to
past_run         the report of a run file or a log
tracker_feed     what trackers receive; trackers/: one file per tracker
runfile/         the file on disk; live/: the live page
"""
