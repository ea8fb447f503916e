"""Details of `updates`: equality of the update modes, scaling, hardware limits, and a kernel profile."""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import report
from benchmarks.peers import loops
from benchmarks.report import Entry, Sections, number, table
from benchmarks.speed import cases
from benchmarks.speed.cases import Case
from benchmarks.speed.timing import Runs, alternate, wait
from rl_training.algorithms.base import Learner
from rl_training.processor import BLAS, product_library
from rl_training.updates.updater import set_precision

Found = Iterator[tuple[str, Entry]]
Kernel = tuple[str, float, float]  # name, number and µs per update
_UPDATES = 1_000
_SCALED = ("SAC", "REDQ-10, actor every 20", "EDAC-10, 256×3")
_PROFILED = 20  # a multiple of every period
# Largest difference of compiled from eager updates, relative to how far the parameters have moved.
TOLERANCE = {1: 1e-3, 100: 0.1}


def _parameters(learner: Learner) -> torch.Tensor:
    state = learner.state_dict()["networks"].values()
    return torch.cat([t.detach().double().reshape(-1) for t in state if t.is_floating_point()])


def _nudge(learner: Learner) -> None:
    """Move every parameter to the next representable number above or below, at random."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in (p for module in learner.modules().values() for p in module.parameters()):
            toward = torch.where(torch.rand(p.shape, generator=generator) < 0.5, -math.inf, math.inf)
            p.copy_(torch.nextafter(p, toward.to(p)))


def _trajectory(
    case: Case, device: torch.device, acceleration: Any, batch: int, stops: list[int], *, nudged: bool = False
) -> list[torch.Tensor]:
    """All parameters after each number of updates in `stops`, from the same initial state and random numbers."""
    runner = cases.updater(case, device, acceleration=acceleration, batch=batch)
    if nudged:
        _nudge(runner.learner)
    found, done = [], 0
    for stop in stops:
        runner.run(stop - done)
        done = stop
        found.append(_parameters(runner.learner).clone())
    return found


def check(chosen: list[Case], options: argparse.Namespace, device: torch.device) -> Found:
    """Check that captured updates equal eager ones bit for bit, measure the rounding of compiled ones, count host
    reads."""
    on_gpu = device.type == "cuda"
    for case in chosen:
        stops = [0, 1, 100, _UPDATES] if on_gpu else [0, 1, 100]
        eager = _trajectory(case, device, "eager", options.batch, stops)
        entry: Entry = {"case": case.name, "updates": stops[-1], "tf32": options.tf32}
        if on_gpu:
            captured = _trajectory(case, device, "graph", options.batch, stops)
            entry["captured_equal"] = all(torch.equal(a, b) for a, b in zip(eager, captured))
            entry["captured_difference"] = float((eager[-1] - captured[-1]).abs().max())
            entry["sync_free"] = _sync_free(case, device, options)
        compiled = _trajectory(case, device, "compile", options.batch, stops[:3])
        nudged = _trajectory(case, device, "eager", options.batch, stops[:3], nudged=True)
        for i, updates in ((1, 1), (2, 100)):
            moved = (eager[i] - eager[0]).norm()
            apart = compiled[i] - eager[i]
            entry[f"compiled_max_{updates}"] = float(apart.abs().max())
            entry[f"compiled_relative_{updates}"] = float(apart.norm() / moved)
        entry["nudged_relative_100"] = float((nudged[2] - eager[2]).norm() / moved)
        entry["within"] = all(entry[f"compiled_relative_{n}"] <= bound for n, bound in TOLERANCE.items())
        print({k: v for k, v in entry.items() if k != "kind"}, flush=True)
        yield case.name, entry


def _sync_free(case: Case, device: torch.device, options: argparse.Namespace) -> bool:
    """Whether blocks of updates run with host reads disabled."""
    runner = cases.updater(case, device, acceleration=options.acceleration, batch=options.batch)
    runner.run(60)
    wait()
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.run(200)
    except RuntimeError as error:
        print(f"{case.name}: {error}")
        return False
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def _variants(case: Case, batch: int) -> dict[str, dict[int, tuple[Case, int]]]:
    """Cases and batch sizes along each axis, varying one size at a time."""
    layers = len(case.hidden)
    found = {
        "batch": {b: (case, b) for b in (64, 256, 1024, 4096)},
        "width": {w: (replace(case, hidden=(w,) * layers), batch) for w in (64, 128, 256, 512, 1024)},
    }

    def changed(key: str, values: tuple[int, ...]) -> dict[int, tuple[Case, int]]:
        return {v: (replace(case, settings=case.settings | {key: v}), batch) for v in values}

    if "num_critics" in case.learner.Config.model_fields:
        found["critics"] = changed("num_critics", (2, 5, 10, 20, 50))
    if case.algo == "redq":
        found["updates per environment step"] = changed("policy_delay", (1, 2, 5, 10, 20))
    return found


def scaling(chosen: list[Case], options: argparse.Namespace, device: torch.device) -> Found:
    """Vary one size at a time, starting from batch 256, width 256 and the case's number of critics."""
    for case in (case for case in chosen if case.name in _SCALED):
        for axis, variants in _variants(case, options.batch).items():
            rates = {}
            for value, (variant, batch) in variants.items():
                runner = cases.updater(variant, device, acceleration=options.acceleration, batch=batch)
                measured = alternate({"ours": runner}, seconds=options.seconds / 3, blocks=3, period=variant.period)
                rates[str(value)] = measured["ours"].median
                print(f"{case.name}, {axis} {value}: {number(rates[str(value)])}", flush=True)
            yield f"{case.name}/{axis}", {"case": case.name, "axis": axis, "tf32": options.tf32, "rates": rates}


def _multiplied(x: list[int], transposed: list[int], *others: Any, **named: Any) -> float:
    """Operations of `onednn_product`, from the shapes of its factors."""
    return 2 * math.prod(x) * transposed[0]


def operations(case: Case, batch: int) -> float:
    """Floating-point operations of the matrix products of one update, averaged over the learner's variants."""
    runner = cases.updater(case, torch.device("cpu"), acceleration="eager", batch=batch)
    own = {torch.ops.mkldnn._linear_pointwise: _multiplied} if product_library() != BLAS else {}
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        runner.run(case.period)
    return float(counter.get_total_flops()) / case.period


def traffic(case: Case, batch: int) -> float:
    """Bytes that cannot stay in a cache between updates: parameters, gradients, moments, targets and the batch.

    Adam reads p, g, m, v and writes p, m, v; the gradient was written once; a target is read and written, and its
    source read; activations are not counted.
    """
    learner = cases.build(case, torch.device("cpu"))
    owned = sum(p.numel() for o in learner.optimizers.values() for p in o.parameters)
    everything = sum(p.numel() for m in learner.modules().values() for p in m.parameters())
    row = (2 * cases.OBS_DIM + cases.ACTION_DIM + 2) * batch
    return 4.0 * (8 * owned + 2 * (everything - owned) + row)


def _seconds(action: Callable[[], Any], repeat: int) -> float:
    for _ in range(3):
        action()
    wait()
    started = time.perf_counter()
    for _ in range(repeat):
        action()
    wait()
    return (time.perf_counter() - started) / repeat


def _product_rate(size: int, members: int, device: torch.device, repeat: int) -> float:
    a, b = (torch.randn(members, size, size, device=device) for _ in range(2))
    return 2 * members * size**3 / _seconds(lambda: torch.bmm(a, b), repeat)


def _per_kernel(device: torch.device) -> float:
    """Seconds between consecutive dependent tiny kernels inside a CUDA graph."""
    x = torch.zeros(256, device=device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1.0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(200):
            x.add_(1.0)
    return _seconds(graph.replay, 50) / 200


def floor(chosen: list[Case], options: argparse.Namespace, device: torch.device) -> Found:
    """Measured rates of the device and, for each case, the resulting lower bound of its time per update."""
    on_gpu = device.type == "cuda"
    n = 8192 if on_gpu else 1024
    rates: Entry = {}
    for tf32 in (False, True) if on_gpu else (False,):
        set_precision(tf32)
        label = "tf32" if tf32 else "float32"
        rates[f"large_{label}"] = _product_rate(n, 1, device, 10)
        rates[f"small_2_{label}"] = _product_rate(256, 2, device, 300)
        rates[f"small_10_{label}"] = _product_rate(256, 10, device, 100)
    set_precision(options.tf32)
    source = torch.empty((1 << 30) // 4 if on_gpu else (1 << 27) // 4, device=device)
    target = torch.empty_like(source)
    rates["copy"] = 2 * source.numel() * 4 / _seconds(lambda: target.copy_(source), 10)
    if on_gpu:
        rates["kernel"] = _per_kernel(device)
    print(rates, flush=True)
    yield "device", {"rates": rates}
    precision = "tf32" if options.tf32 else "float32"
    for case in chosen:
        flops, moved = operations(case, options.batch), traffic(case, options.batch)
        entry = {
            "case": case.name,
            "tf32": options.tf32,
            "operations": flops,
            "bytes": moved,
            "seconds_operations": flops / rates[f"large_{precision}"],
            "seconds_bytes": moved / rates["copy"],
        }
        print(f"{case.name}: {flops / 1e9:.2f} GFLOP, {moved / 1e6:.1f} MB", flush=True)
        yield case.name, entry


def profile(chosen: list[Case], options: argparse.Namespace, device: torch.device) -> Found:
    """Kernels (on a CPU, operators) of one update by name; also of Unifloral on a GPU if its checkout is given."""
    libraries = [one for one in options.libraries if one.name == "Unifloral" and device.type == "cuda"]
    for case in chosen:
        runner = cases.updater(case, device, acceleration=options.acceleration, batch=options.batch)
        with ExitStack() as stack:
            found = loops.connect(
                libraries, case, device, batch=options.batch, tf32=options.tf32, within=options.peer_seconds
            )
            peers = [stack.enter_context(peer) for peer in found[0].values()]
            contenders: dict[str, Runs] = {"ours": runner} | {peer.about()["peer"]: peer for peer in peers}
            measured = alternate(contenders, seconds=options.seconds / 2, blocks=3, period=case.period)
            rows = {"ours": kernels_of(runner, device)}
            for peer in peers:
                count = peer.period or _PROFILED
                rows[peer.about()["peer"]] = _per_update(peer.kernels(count), count)
        for name, kernels in rows.items():
            entry: Entry = {
                "case": case.name,
                "tf32": options.tf32,
                "mode": runner.learner.execution.acceleration,
                "rate": measured[name].median,
                "kernels": kernels,
            } | ({} if name == "ours" else {"peer": name})
            entry |= {"note": options.note} if options.note else {}
            print(f"\n{case.name}, {name}: {1e6 / entry['rate']:.0f} µs; {described(kernels)}")
            yield case.name + ("" if name == "ours" else f"/{name}"), entry


def kernels_of(runner: Runs, device: torch.device) -> list[Kernel]:
    """The kernels, on a CPU the operators, of an update; the longest first."""
    on_gpu = device.type == "cuda"
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as record:
        runner.run(_PROFILED)
        wait()
    times: dict[str, list[float]] = defaultdict(list)
    for event in record.events():
        if on_gpu and event.device_type.name == "CUDA":
            times[event.name].append(event.time_range.elapsed_us())
        elif not on_gpu and event.self_cpu_time_total > 0:
            times[event.name].append(event.self_cpu_time_total)
    return _per_update([[name, len(each), sum(each)] for name, each in times.items()], _PROFILED)


def _per_update(found: list[Any], updates: int) -> list[Kernel]:
    return sorted(((name, count / updates, us / updates) for name, count, us in found), key=lambda row: -row[2])


def described(kernels: list[Kernel]) -> str:
    """How many kernels an update has, and a line for each of the longest."""
    lines = [f"{sum(times for _, times, _ in kernels):.1f} kernels, {sum(us for *_, us in kernels):.0f} µs in them"]
    lines += [f"{us:8.1f} µs {times:6.1f} × {name[:100]}" for name, times, us in kernels[:25]]
    return "\n".join(lines)


def sections(entries: dict[str, Entry]) -> Sections:
    """One section for each kind of measurement."""
    kinds: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries.values():
        kinds[entry["kind"]].append(entry)
    writers = {"check": _check_text, "scaling": _scaling_text, "floor": _floor_text, "profile": _profile_text}
    return {
        ("performance/updates", kind): f"{write(kinds[kind])}\n\n{report.origins(kinds[kind])}"
        for kind, write in writers.items()
        if kinds[kind]
    }


def _label(entry: Entry) -> str:
    where = entry["machine"].split(",")[0]
    return f"{entry['case']} ({where}, {'TF32' if entry.get('tf32') else 'float32'})"


def _check_text(entries: list[Entry]) -> str:
    verdict = {True: "yes", False: "no", None: "–"}
    rows = [
        [
            _label(e),
            verdict[e.get("captured_equal")],
            verdict[e.get("sync_free")],
            *(f"{e[f'compiled_max_{n}']:.1e} / {e[f'compiled_relative_{n}']:.1e}" for n in (1, 100)),
            f"{e['nudged_relative_100']:.1e}" if "nudged_relative_100" in e else "–",
            verdict[e["within"]],
        ]
        for e in entries
    ]
    header = [
        "",
        "captured = eager",
        "no host read",
        "compiled, 1 update",
        "compiled, 100 updates",
        "eager from one bit apart, 100 updates",
        "within tolerance",
    ]
    return (
        "## The same computation\n\nMeasured by `python -m benchmarks.speed.updates --check`. *Captured = eager*: "
        f"every parameter is bit-identical after {_UPDATES:,} updates without compilation. *Compiled*, compared "
        "with eager: the largest difference of a parameter / the norm of the difference relative to the distance "
        f"moved. The tolerance of the second number is {TOLERANCE[1]:g} after one update and {TOLERANCE[100]:g} "
        "after 100. Rounding differences grow because training is chaotic. *Eager from one bit apart* is the same "
        "number for two eager runs whose parameters start one floating-point number apart."
        f"\n\n{table(header, rows)}"
    )


def _scaling_text(entries: list[Entry]) -> str:
    rows = []
    for e in entries:
        for value, rate in e["rates"].items():
            cost = f"{1e6 / rate:,.0f}"
            whole = f"{1e6 * int(value) / rate:,.0f}" if e["axis"].startswith("updates") else ""
            rows.append([_label(e), e["axis"], value, number(rate), cost, whole])
    header = ["", "axis", "value", "updates/s", "µs per update", "µs per environment step"]
    written = "Measured by `python -m benchmarks.speed.updates --scaling`."
    return f"## Scaling\n\n{written}\n\n{table(header, rows)}"


def _floor_text(entries: list[Entry]) -> str:
    devices = [e for e in entries if "rates" in e]
    lines = [
        "## Lower bound\n\nMeasured by `python -m benchmarks.speed.updates --floor`. Operations are those of the "
        "matrix products in one update. Bytes are parameters, gradients, moments, targets and the batch.\n"
    ]
    for e in devices:
        parts = [f"copy {e['rates']['copy'] / 1e9:,.0f} GB/s"]
        for key, rate in e["rates"].items():
            if key.startswith(("large", "small")):
                parts.append(f"{key.replace('_', ' ')} {rate / 1e12:.2f} TFLOP/s")
        if "kernel" in e["rates"]:
            parts.append(f"one dependent tiny kernel in a graph {e['rates']['kernel'] * 1e6:.2f} µs")
        lines.append(f"{e['machine']}: {', '.join(parts)} (large: one big product; small N: N of 256×256×256).\n")
    rows = [
        [
            _label(e),
            f"{e['operations'] / 1e9:.2f}",
            f"{e['bytes'] / 1e6:.1f}",
            f"{e['seconds_operations'] * 1e6:.1f}",
            f"{e['seconds_bytes'] * 1e6:.1f}",
        ]
        for e in entries
        if "case" in e
    ]
    header = ["", "GFLOP per update", "MB per update", "µs by operations", "µs by bytes"]
    return "\n".join([*lines, table(header, rows)])


def _profile_text(entries: list[Entry]) -> str:
    lines = [
        "## Profile\n\nMeasured by `python -m benchmarks.speed.updates --profile`; the six kernels "
        "with most time.\n"
    ]
    for e in entries:
        count, busy = (sum(float(row[i]) for row in e["kernels"]) for i in (1, 2))
        who = str(e.get("peer", e["mode"])).replace(":", " ")
        lines.append(
            f"**{_label(e)}**, {who}: {1e6 / e['rate']:.0f} µs per update, {count:.0f} kernels, "
            f"{busy:.0f} µs in them (parallel branches overlap). {e.get('note', '')}".rstrip()
            + "\n"
        )
        rows = [[f"`{str(name)[:80]}`", f"{n:.1f}", f"{spent:.1f}"] for name, n, spent in e["kernels"][:6]]
        lines.append(table(["kernel", "per update", "µs"], rows) + "\n")
    return "\n".join(lines).rstrip("\n")
