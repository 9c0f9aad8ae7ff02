"""A launch as a Kubernetes Job: one pod on every node."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from dovetail.hardware import Chip
from dovetail.launch.starting.nodes import FILL_IN, NodeLaunch, check, exports, heading, node_command, port
from dovetail.launch.starting.yaml_text import block

#: How names of chips begin → the resource of a pod.
RESOURCES = {
    "mi": "amd.com/gpu",
    "tpu-": "google.com/tpu",
    "gaudi": "habana.ai/gaudi",
    "trainium": "aws.amazon.com/neuron",
    "ascend": "huawei.com/Ascend910",
}
_FOLDER = "/etc/launch"
_SCRIPT = "start.sh"


def kubernetes(launch: NodeLaunch) -> tuple[str, str]:
    """A Service by which pods find each other, a ConfigMap of the files, and an indexed Job."""
    name = f"{launch.target}-k8s.yaml"
    resource = _resource(launch.cluster.chip)
    asked = {"image": f"a container image with {launch.framework}, whose working folder is that of the program"}
    if FILL_IN in resource:
        asked["resources"] = f"the resource that a node offers for {launch.cluster.chip.name}"
    if resource == "google.com/tpu":
        asked["nodeSelector"] = "the type and topology of the TPU slice"
    usage = [
        f"Replace every {FILL_IN} below, add the volumes of your data, then: kubectl apply -f {name}",
        "Where nodes have RDMA, add its resource next to that of the chips.",
    ]
    documents = [_service(launch), _config_map(launch), _job(launch, resource)]
    return name, "\n".join([*heading(launch, usage, asked), "", ""]) + "\n---\n".join(documents) + "\n"


def _resource(chip: Chip) -> str:
    other = "nvidia.com/gpu" if chip.kind == "gpu" else f"{FILL_IN}/chip"
    return next((resource for start, resource in RESOURCES.items() if chip.name.startswith(start)), other)


def _service(launch: NodeLaunch) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {launch.name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    app: {launch.name}"""


def _config_map(launch: NodeLaunch) -> str:
    files = {_SCRIPT: "\n".join(_script(launch)), **launch.files}
    data = "\n".join(f"  {json.dumps(name)}: |2\n{block([text], 4)}" for name, text in files.items())
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {launch.name}
data:
{data}"""


def _script(launch: NodeLaunch) -> Iterator[str]:
    yield "set -euo pipefail"
    if launch.start.fill_in:
        yield f"# {FILL_IN} counts as empty"
    for name, what in launch.start.fill_in.items():
        yield f'{name}="${{{name}#{FILL_IN}}}"'
        yield check(name, what)
    yield 'NODE_RANK="$JOB_COMPLETION_INDEX"'
    yield f"MASTER_ADDR={launch.name}-0.{launch.name}"
    yield port()
    yield from exports(launch)
    if launch.files:
        yield f"cp {' '.join(shlex.quote(f'{_FOLDER}/{name}') for name in launch.files)} ."
    yield ""
    yield from node_command(launch)


def _job(launch: NodeLaunch, resource: str) -> str:
    variables = "".join(
        f"\n            - name: {variable}\n              value: {FILL_IN}" for variable in launch.start.fill_in
    )
    env = f"\n          env:{variables}" if variables else ""
    selector = ""
    if resource == "google.com/tpu":
        selector = f"""
      nodeSelector:
        cloud.google.com/gke-tpu-accelerator: {FILL_IN}
        cloud.google.com/gke-tpu-topology: {FILL_IN}"""
    return f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: {launch.name}
spec:
  completionMode: Indexed
  completions: {launch.nodes}
  parallelism: {launch.nodes}
  backoffLimit: 0
  template:
    metadata:
      labels:
        app: {launch.name}
    spec:
      subdomain: {launch.name}
      restartPolicy: Never{selector}
      containers:
        - name: training
          image: {FILL_IN}
          command: [bash, {_FOLDER}/{_SCRIPT}]{env}
          resources:
            limits:
              {resource}: {launch.chips_per_node}
          volumeMounts:
            - name: launch
              mountPath: {_FOLDER}
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: launch
          configMap:
            name: {launch.name}
        - name: shared-memory
          emptyDir:
            medium: Memory"""
