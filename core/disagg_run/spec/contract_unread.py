"""Variables of job scripts that no option and no setting takes: who reads them, or why nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

#: Read by the command line itself, beside the options.
ELSEWHERE: Mapping[str, str] = {
    "DRY_RUN": "1, true or yes: the bare form prints the plan and starts nothing, as --dry-run",
    "NODE_RANK": "beside IPADDRS: the bare form acts as the agent of that rank, as --rank",
    "NNODES": "must be the number of IPADDRS; where the bare form acts as a rank, of any list of nodes",
    "NODE0_ADDR": "must be the first of IPADDRS, where rank 0 is; where the bare form acts as a rank, of any list",
    "MASTER_ADDR": "as NODE0_ADDR, where a job script sets it for PyTorch's launchers",
    "SLURM_STEP_ID": "set by srun: the bare form is a rank's agent if the step has as many tasks and nodes as the plan",
    "SLURM_STEP_NUM_TASKS": "as SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES": "as SLURM_STEP_ID",
    "SLURM_PROCID": "the rank, where NODE_RANK and --rank do not say it",
    "SLURM_JOB_ID": "with SLURM_STEP_ID: in the name of the run directory, which all ranks share then",
}

#: What sends a job says; a plan does not depend on it.
SUBMITTING: Mapping[str, str] = {
    "FRAMEWORK": "the engine, for who submits; inside the job ENGINE is read",
    "CONTAINER_IMAGE": "the image in which the job script starts us; a plan that starts containers itself has image",
    "RUNNER_NAME": "name of the cluster, for who submits",
    "SLURM_ACCOUNT": "for sbatch",
    "SLURM_PARTITION": "for sbatch",
    "TIME_LIMIT": "for sbatch",
    "SLURM_REUSE_JOBID": "an allocation to use again",
    "SLURM_EXCLUDE_NODES": "for sbatch; an empty text is none",
    "NODE_LIST": "for sbatch; inside the job IPADDRS says which nodes there are",
    "SKIP_RDMA_CHECK": "the job script's own checks; those of a plan are let through with --waive",
    "SKIP_GPU_SANITY": "the job script's own checks; those of a plan are let through with --waive",
    "KEEP_CONTAINERS": "the job script's own containers",
}

_FROM_ENTRY = "the entry's own number, from which the job script makes {}, which is read"
_LABEL = "a label for result files"
_CLIENT = "for the client, which the job script starts"
_MOUNT = "a mount of the client's container"
_CONTAINER = "set by the plugin whose processes need it; another value is given with --env NAME=VALUE"

#: By name or pattern.
UNREAD: Mapping[str, str] = {
    "*WS_PATH": "where the job script finds its own files",
    "BENCHMARK_LOGS_DIR": "where the job script's client writes; the run's own directory is --run-dir",
    "PREFILL_NODES": "in a master config's additional-settings only; inside a job --prefill-nodes",
    "DECODE_NODES": "in a master config's additional-settings only; inside a job --decode-nodes",
    "PREFILL_NUM_WORKERS": _FROM_ENTRY.format("xP"),
    "DECODE_NUM_WORKERS": _FROM_ENTRY.format("yD"),
    "PREFILL_TP": _FROM_ENTRY.format("PREFILL_TP_SIZE"),
    "DECODE_TP": _FROM_ENTRY.format("DECODE_TP_SIZE"),
    "PREFILL_EP": _FROM_ENTRY.format("PREFILL_ENABLE_EP"),
    "DECODE_EP": _FROM_ENTRY.format("DECODE_ENABLE_EP"),
    "PREFILL_DP_ATTN": _FROM_ENTRY.format("PREFILL_ENABLE_DP"),
    "DECODE_DP_ATTN": _FROM_ENTRY.format("DECODE_ENABLE_DP"),
    "SPEC_DECODING": _FROM_ENTRY.format("DECODE_MTP_SIZE"),
    "IS_MTP": _FROM_ENTRY.format("DECODE_MTP_SIZE"),
    "IS_MULTINODE": _LABEL,
    "MODEL_PREFIX": _LABEL,
    "PRECISION": _LABEL,
    "SCENARIO_TYPE": _LABEL,
    "RESULT_FILENAME": _LABEL,
    "KV_OFFLOAD_BACKEND_METADATA": _LABEL,
    "EVAL_CONC": _CLIENT,
    "DURATION": _CLIENT,
    "CLIENT_IMAGE": _CLIENT,
    "CLIENT_CONT_NAME": _CLIENT,
    "HOST_BENCH_LOGS": _MOUNT,
    "HOST_MODEL_DIR": _MOUNT,
    "HOST_REPO_DIR": _MOUNT,
    "SLURM_JOB_NODELIST": "Slurm's own; IPADDRS has the nodes in rank order",
    "TQDM_MININTERVAL": "read by progress bars in the engine; every process inherits it",
    "PROXY_STREAM_IDLE_TIMEOUT": "of a proxy in whose place the router stands",
    "HSA_ENABLE_SDMA": _CONTAINER,
    "PYTHONPYCACHEPREFIX": _CONTAINER,
    "UCX_*": _CONTAINER,
}


def why_unread(name: str) -> str:
    """Why no option and no setting takes a variable; "" = it is not a known variable of job scripts."""
    for known in (ELSEWHERE, SUBMITTING, UNREAD):
        for pattern, why in known.items():
            if fnmatchcase(name, pattern):
                return why
    return ""
