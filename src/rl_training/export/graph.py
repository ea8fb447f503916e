"""Write a policy as an ONNX graph, node by node and without tracing.

Opset 17 of 2022 (the first with LayerNormalization) suffices, so that old runtimes can load the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import MissingDependencyError
from rl_training.models.steps import Step
from rl_training.spaces import SpaceSpec

OPSET, IR_VERSION = 17, 8
_SIMPLE = {"relu": "Relu", "elu": "Elu", "tanh": "Tanh"}


def require_onnx() -> None:
    """Raise if the extra `export` is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        name = error.name or "onnx"
        raise MissingDependencyError(
            f"an .onnx file needs {name}, which is not installed; pip install onnx onnxruntime, "
            "or write .npz, which needs no extra"
        ) from None


class _Graph:
    """Nodes and constants of a graph; every method adds some and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.kept = ""

    def constant(self, value: Any, dtype: Any = None) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], name, **attributes))
        return name

    def cast(self, x: str, dtype: Any) -> str:
        from onnx import helper

        return self.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _clip(g: _Graph, x: str, low: Any, high: Any) -> str:
    return g.node("Clip", x, g.constant(low), g.constant(high))


def _layer_norm(g: _Graph, x: str, weight: Any, bias: Any, epsilon: Any) -> str:
    return g.node("LayerNormalization", x, g.constant(weight), g.constant(bias), axis=-1, epsilon=float(epsilon))


def _rms_norm(g: _Graph, x: str, weight: Any, epsilon: Any) -> str:
    square = g.node("ReduceMean", g.node("Mul", x, x), axes=[-1])
    norm = g.node("Sqrt", g.node("Add", square, g.constant(epsilon)))
    return g.node("Mul", g.node("Div", x, norm), g.constant(weight))


def _keep(g: _Graph, x: str) -> str:
    g.kept = x
    return x


def _gelu(g: _Graph, x: str) -> str:
    """Exact GELU, by the error function."""
    erf = g.node("Erf", g.node("Mul", x, g.constant(np.sqrt(0.5), np.float32)))
    half = g.node("Mul", x, g.constant(0.5, np.float32))
    return g.node("Mul", half, g.node("Add", erf, g.constant(1.0, np.float32)))


def _gelu_tanh(g: _Graph, x: str) -> str:
    """GELU with the tanh approximation: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    cube = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), g.constant(0.044715, np.float32))
    inner = g.node("Mul", g.node("Add", x, cube), g.constant(np.sqrt(2.0 / np.pi), np.float32))
    half = g.node("Mul", x, g.constant(0.5, np.float32))
    return g.node("Mul", half, g.node("Add", g.node("Tanh", inner), g.constant(1.0, np.float32)))


def _halves(g: _Graph, x: str) -> tuple[str, str]:
    """Split into mean and log std."""
    from onnx import helper

    name = f"split_{len(g.nodes)}"
    mean, log_std = f"{name}_mean", f"{name}_log_std"
    g.nodes.append(helper.make_node("Split", [x], [mean, log_std], name, axis=-1))
    return mean, log_std


def _tanh_mean(g: _Graph, x: str) -> str:
    mean, log_std = _halves(g, x)
    return g.node("Concat", g.node("Tanh", mean), log_std, axis=-1)


def _tanh_log_std(g: _Graph, x: str, low: Any, high: Any) -> str:
    mean, raw = _halves(g, x)
    scaled = g.node("Mul", g.node("Tanh", raw), g.constant(0.5 * (high - low)))
    return g.node("Concat", mean, g.node("Add", scaled, g.constant(0.5 * (high + low))), axis=-1)


def _gaussian(g: _Graph, x: str, low: Any, high: Any) -> str:
    mean, log_std = _halves(g, x)
    std = g.node("Exp", _clip(g, log_std, low, high))
    return g.node("Add", mean, g.node("Mul", std, "noise"))


def _categorical(g: _Graph, x: str) -> str:
    """Sample by inverting the cumulative distribution; a draw above all other ends selects the last action."""
    shares = g.node("CumSum", g.node("Softmax", x, axis=-1), g.constant(-1, np.int64))
    ends = g.node("Slice", shares, *(g.constant([value], np.int64) for value in (0, -1, -1)))
    erf = g.node("Erf", g.node("Mul", "noise", g.constant(np.sqrt(0.5), np.float32)))
    drawn = g.node("Mul", g.node("Add", erf, g.constant(1.0, np.float32)), g.constant(0.5, np.float32))
    passed = g.cast(g.node("Less", ends, drawn), np.int64)
    return g.node("ReduceSum", passed, g.constant([-1], np.int64), keepdims=0)


def _scale(g: _Graph, x: str, low: Any, high: Any, inner_low: Any, inner_high: Any) -> str:
    """Same as `SpaceSpec.to_env`, in double precision; NaN becomes the middle of the range."""

    def number(value: Any) -> str:
        return g.constant(value, np.float64)

    legal = g.node("Where", g.node("IsNaN", x), g.constant(0.0, np.float32), x)
    unit = g.node("Clip", g.cast(legal, np.float64), number(-1.0), number(1.0))
    share = g.node("Add", g.node("Mul", unit, number(0.5)), number(0.5))
    rest = g.node("Sub", number(1.0), share)
    scaled = g.node("Add", g.node("Mul", rest, number(low)), g.node("Mul", share, number(high)))
    typed = g.cast(scaled, inner_low.dtype)
    return g.node("Min", g.node("Max", typed, g.constant(inner_low)), g.constant(inner_high))


_WRITERS: dict[str, Callable[..., str]] = {
    "normalize": lambda g, x, shift, scale: g.node("Mul", g.node("Sub", x, g.constant(shift)), g.constant(scale)),
    "clip": _clip,
    "affine": lambda g, x, weight, bias: g.node("Gemm", x, g.constant(weight), g.constant(bias)),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    **{name: lambda g, x, kind=kind: g.node(kind, x) for name, kind in _SIMPLE.items()},
    "leaky_relu": lambda g, x: g.node("LeakyRelu", x, alpha=0.01),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda g, x: g.node("Mul", x, g.node("Sigmoid", x)),
    "keep": _keep,
    "add_kept": lambda g, x: g.node("Add", x, g.kept),
    "tanh_mean": _tanh_mean,
    "tanh_log_std": _tanh_log_std,
    "gaussian": _gaussian,
    "add_noise": lambda g, x, scale: g.node("Add", x, g.node("Mul", g.constant(scale), "noise")),
    "append_noise": lambda g, x: g.node("Concat", x, "noise", axis=-1),
    "categorical": _categorical,
    "scale": _scale,
    "argmax": lambda g, x: g.node("ArgMax", x, axis=-1, keepdims=0),
    "choose": lambda g, x, start: g.cast(g.node("Add", x, g.constant(start, np.int64)), start.dtype),
}


def onnx_bytes(
    steps: Sequence[Step], spaces: SpaceSpec, *, sampled: bool, metadata: Mapping[str, str], version: str
) -> bytes:
    """Build a self-contained model with inputs `observation [batch, O]` (and `noise`) and output `action`."""
    from onnx import TensorProto, checker, helper

    graph, x = _Graph(), "observation"
    for step in steps:
        x = _WRITERS[step.operation](graph, x, **step.arrays)
    graph.nodes.append(helper.make_node("Identity", [x], ["action"], "action"))
    inputs = {"observation": spaces.obs_dim} | ({"noise": spaces.action_dim} if sampled else {})
    action = helper.np_dtype_to_tensor_dtype(np.dtype(spaces.action_dtype))
    shape: list[str | int | None] = ["batch"] if spaces.discrete else ["batch", spaces.action_dim]
    onnx_graph = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in inputs.items()],
        [helper.make_tensor_value_info("action", action, shape)],
        graph.constants,
    )
    model = helper.make_model(
        onnx_graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="rl-training",
        producer_version=version,
    )
    helper.set_model_props(model, dict(metadata))
    checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def onnx_runner(data: bytes) -> Callable[[NDArray[Any], NDArray[Any] | None], NDArray[Any]]:
    """Load the bytes of a file in onnxruntime; return a function of observation and noise."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(observation: NDArray[Any], noise: NDArray[Any] | None) -> NDArray[Any]:
        given = {"observation": observation} | ({} if noise is None else {"noise": noise})
        return session.run(["action"], given)[0]

    return run
