"""Files that start a launch on the nodes of a cluster: a script, a Slurm, SkyPilot or Kubernetes job."""
