"""The one table of all that a user can ask: command line, run file, variables and their summaries derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from disagg_run.spec.model import ROLES
from disagg_run.spec.option import Option
from disagg_run.spec.role_options import both_roles_options, role_options

WHAT = "Engine and model"
NODES = "Nodes"
ROUTER = "Router"
LOAD = "Load that servers are sized for (no benchmark is run)"
FINE = "Fine tuning"
SIMULATION = "Simulation"

_WHAT = (
    Option(
        key="engine",
        summary="engine plugin; `disagg-run engines` lists them",
        group=WHAT,
        metavar="NAME",
        contract=["ENGINE"],
    ),
    Option(key="model", summary="model of the engine's table", group=WHAT, metavar="NAME", contract=["MODEL_NAME"]),
    Option(
        key="model-path",
        summary="the model on the nodes; default: DIR/NAME",
        group=WHAT,
        form="path",
        contract=["MODEL_PATH"],
    ),
    Option(
        key="model-dir",
        summary="directory of models on the nodes; default: /models",
        group=WHAT,
        metavar="DIR",
        form="path",
        contract=["MODEL_DIR"],
    ),
    Option(key="served-model-name", summary="name that clients use in requests", group=WHAT, metavar="NAME"),
    Option(key="connector", summary="KV connector plugin; default: the engine's", group=WHAT, metavar="NAME"),
    Option(
        key="engine-version",
        summary="version to plan for; default: of the image or the newest known",
        group=WHAT,
        form="version",
    ),
    Option(key="image", summary="container image of the engine; default: the bare host", group=WHAT, form="image"),
    Option(
        key="mounts",
        summary="what containers see of the host beside the model; what lies below /HOST is named by /INSIDE there",
        group=WHAT,
        type="names",
        form="mount",
        flag="--mount",
        metavar="/HOST:/INSIDE[:ro]",
    ),
)

_NODES = (
    Option(
        key="nodes",
        summary="hosts in rank order, ADDRESS or NAME=ADDRESS, comma separated; default: an unbound plan",
        group=NODES,
        type="nodes",
        aliases=["--node-addresses"],
        metavar="LIST",
        contract=["IPADDRS"],
    ),
    Option(
        key="gpus-per-node",
        summary="GPUs of each node; default: 8",
        group=NODES,
        type="int",
        minimum=1,
        contract=["GPUS_PER_NODE"],
    ),
    Option(key="pack", summary="let workers share nodes where they could have their own", group=NODES, type="bool"),
    Option(
        key="ib-devices",
        summary="RDMA devices in rail order, comma separated; default: those of the node",
        group=NODES,
        type="list",
        metavar="LIST",
        form="device",
        contract=["IBDEVICES"],
    ),
)

_ROUTER = (
    Option(
        key="router.mode",
        summary="plan: started on rank 0; external: by somebody else",
        group=ROUTER,
        flag="--router",
        choices=["plan", "external"],
    ),
    Option(
        key="router.port",
        summary="HTTP port",
        group=ROUTER,
        type="int",
        minimum=1,
        maximum=65535,
        contract=["ROUTER_PORT"],
    ),
    Option(key="router.policy", summary="routing policy", group=ROUTER),
    Option(key="router.prefill-policy", summary="policy among prefill workers", group=ROUTER),
    Option(key="router.decode-policy", summary="policy among decode workers", group=ROUTER),
    Option(key="router.image", summary="container image; default: the engine's", group=ROUTER, form="image"),
    Option(
        key="router.version",
        summary="version whose flags are checked; default: the newest known",
        group=ROUTER,
        form="version",
    ),
    Option(key="router.args", summary="further flags, as one text", group=ROUTER, type="args"),
    Option(key="router.env", summary="a variable", group=ROUTER, type="env", metavar="NAME=VALUE"),
)

_LOAD = (
    Option(
        key="bench.isl",
        summary="prompt length in tokens; default: 8192",
        group=LOAD,
        type="int",
        flag="--isl",
        fields=["bench.input_len"],
        minimum=1,
        contract=["BENCH_INPUT_LEN"],
    ),
    Option(
        key="bench.osl",
        summary="completion length in tokens; default: 1024",
        group=LOAD,
        type="int",
        flag="--osl",
        fields=["bench.output_len"],
        minimum=1,
        contract=["BENCH_OUTPUT_LEN"],
    ),
    Option(
        key="bench.concurrency",
        summary="concurrent requests, 8x16x32 for several runs: engines size batches for the most",
        group=LOAD,
        type="sizes",
        flag="--concurrency",
        minimum=1,
        contract=["BENCH_MAX_CONCURRENCY"],
    ),
    Option(
        key="bench.request-rate",
        summary="requests a second, or inf (the default); nothing is sized by it",
        group=LOAD,
        type="rate",
        flag="--request-rate",
        contract=["BENCH_REQUEST_RATE"],
    ),
    Option(
        key="bench.random-range-ratio",
        summary="lengths vary from this share to the whole; default: 0.8; nothing is sized by it",
        group=LOAD,
        type="float",
        flag="--random-range-ratio",
        fields=["bench.range_ratio"],
        minimum=0,
        maximum=1,
        contract=["BENCH_RANDOM_RANGE_RATIO"],
    ),
    Option(
        key="bench.num-prompts-multiplier",
        summary="prompts of a run = concurrency x this; default: 10; nothing is sized by it",
        group=LOAD,
        type="int",
        flag="--num-prompts-multiplier",
        fields=["bench.prompts_multiplier"],
        minimum=1,
        contract=["BENCH_NUM_PROMPTS_MULTIPLIER"],
    ),
)

_FINE = (
    Option(
        key="args",
        summary="further flags of all servers, as one text",
        group=FINE,
        type="args",
        contract=["EXTRA_SERVER_ARGS"],
    ),
    Option(
        key="env",
        summary="a variable of all servers; prefill:, decode:, router: or a process's name and : before it narrow it",
        group=FINE,
        type="env",
        metavar="NAME=VALUE",
    ),
    Option(
        key="settings",
        summary="a setting of a plugin, `disagg-run engines ENGINE` shows them; prefill: or decode: narrows it",
        group=FINE,
        type="settings",
        flag="--set",
        metavar="NAME=VALUE",
    ),
    Option(
        key="secrets",
        summary="variable passed on by name and never written down",
        group=FINE,
        type="names",
        form="secret",
        flag="--secret",
        metavar="NAME",
    ),
    Option(
        key="patches",
        summary="source patch, or set of them",
        group=FINE,
        type="names",
        flag="--patch",
        metavar="NAME",
    ),
    Option(
        key="forbid-patches",
        summary="fail where a source patch would change the engine",
        group=FINE,
        type="bool",
    ),
    Option(
        key="patch-waiver",
        summary="reference under which the engine may be patched, for each node's ledger",
        group=FINE,
        metavar="TEXT",
    ),
    Option(
        key="waive",
        summary="check to let through; the plan records it",
        group=FINE,
        type="names",
        metavar="NAME",
    ),
)

_SIMULATION = (
    Option(key="simulate", summary="start stand-ins in place of the engines", group=SIMULATION, type="bool"),
    Option(
        key="simulation",
        summary="options of stand-ins, as one text; prefill:, decode: or a process's name and : before it narrow it",
        group=SIMULATION,
        type="simulation",
        flag="--simulate-opt",
    ),
)

OPTIONS: tuple[Option, ...] = (
    *_WHAT,
    *(option for role in ROLES for option in role_options(role)),
    *both_roles_options(),
    *_NODES,
    *_ROUTER,
    *_LOAD,
    *_FINE,
    *_SIMULATION,
)


@cache
def by_dotted() -> Mapping[str, Option]:
    """The options by the name that ``read_spec`` takes."""
    return {option.dotted: option for option in OPTIONS}


@cache
def by_variable() -> Mapping[str, Option]:
    """The options by their own DISAGG_RUN_ variable; for env and settings by what stands before ``_NAME``."""
    return {option.variable: option for option in OPTIONS}
