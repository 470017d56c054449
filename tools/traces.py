"""Converts device traces of FedScale and MobiPerf to a file for `clients.trace`; fedray itself is not needed.

    python tools/traces.py fedscale client_device_capacity client_behave_trace --out trace.parquet --clients 1000
    python tools/traces.py mobiperf 2018-01/*.json --out trace.parquet

FedScale's files are pickles. They are read as data, and nothing in them is run: the instructions of a file are listed
by `pickletools`, and only those that make numbers, text, lists, tuples and dicts are followed; any other one, such as a
class, is refused.
"""

from __future__ import annotations

import argparse
import json
import pickletools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TRAINING = 3.0  # a training step takes three inferences: `augmentation_factor` of FedScale's simulator
DAY = 86_400.0  # seconds
MOST_STEPS = 200_000_000  # of a pickle
Rows = dict[str, Any]  # columns, `[n]` each
_VALUES = {  # instructions that carry their value
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_GATHER: dict[str, Callable[[list[Any]], Any]] = {  # instructions that make one object of all that is above a mark
    "DICT": lambda values: dict(zip(values[::2], values[1::2])),
    "LIST": list,
    "TUPLE": tuple,
}


def read_pickled_data(content: bytes) -> Any:
    """Returns the plain data of a pickle.

    Raises:
        ValueError: It holds anything else, or is damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for step, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        name = instruction.name
        if step > MOST_STEPS:
            raise ValueError("it is too long")
        if name == "STOP":
            break
        try:
            _follow(name, argument, stack, marks, memo)
        except (IndexError, KeyError, TypeError, AttributeError):
            raise ValueError(f"it is damaged at {name}") from None
    if len(stack) != 1:
        raise ValueError("it is no single object")
    return stack[0]


def _follow(name: str, argument: Any, stack: list[Any], marks: list[int], memo: dict[int, Any]) -> None:
    """Follows one instruction."""
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name == "MARK":
        marks.append(len(stack))
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in _PUT:
        memo[int(argument)] = stack[-1]
    elif name in _GET:
        stack.append(memo[int(argument)])
    elif name in _TUPLES:
        stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
    elif name in ("SETITEM", "APPEND"):
        _fill(stack, len(stack) - (2 if name == "SETITEM" else 1))
    elif name in ("SETITEMS", "APPENDS"):
        _fill(stack, marks.pop())
    elif name in _GATHER:
        start = marks.pop()
        stack[start:] = [_GATHER[name](stack[start:])]
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(f"it holds {name}{'' if argument is None else f' {argument!r}'}, which is no plain data")


def _fill(stack: list[Any], start: int) -> None:
    """Puts the values behind a place of the stack into the dict or the list below them."""
    values, below = stack[start:], stack[start - 1]
    del stack[start:]
    if isinstance(below, dict):
        below.update(zip(values[::2], values[1::2], strict=True))
    elif isinstance(below, list):
        below.extend(values)
    else:
        raise TypeError


def read_objects(path: Path) -> Any:
    """Reads a JSON file, a file with a JSON object in each line, or a pickle of plain data without running it.

    Raises:
        ValueError: It is none of these, or cannot be read.
    """
    content = path.read_bytes()
    try:
        if content.lstrip()[:1] not in (b"{", b"["):
            return read_pickled_data(content)
        try:
            return json.loads(content)
        except json.JSONDecodeError:
            return [json.loads(line) for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:100]
        raise ValueError(
            f"{path}: it is neither JSON nor a pickle of plain data ({why}): name the file as it came"
        ) from None


def convert_fedscale(capacity: Any, behaviour: Any = None, clients: int | None = None) -> Rows:
    """Returns the rows of FedScale's `client_device_capacity`, with the windows of its `client_behave_trace`.

    `computation` is in ms an inference and `communication` in kbit/s. A client is there from each `active` to the next
    `inactive` moment, again after `finish_time`. Clients are numbered in the order of their keys, and the i-th of them
    has the i-th behaviour, which begin anew when there are fewer.

    Args:
        capacity: Key -> computation and communication.
        behaviour: Key -> active, inactive and finish_time; None: everybody is always there.
        clients: How many of the clients are taken; None: all.

    Raises:
        ValueError: They do not have this form.
    """
    try:
        entries = [capacity[key] for key in sorted(capacity)][:clients]
        times = np.array([float(entry["computation"]) for entry in entries]) * TRAINING / 1000.0
        links = np.array([float(entry["communication"]) for entry in entries]) * 1000.0 / 8.0
        if behaviour is None:
            return {
                "client": np.arange(len(entries)), "seconds_per_sample": times, "uplink": links, "downlink": links
            }  # fmt: skip
        kept = [behaviour[key] for key in sorted(behaviour)]
        windows = [_read_behaviour(kept[i % len(kept)]) for i in range(len(entries))]
    except (TypeError, KeyError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(
            f"the files are not those of FedScale ({type(error).__name__}: {error}): give client_device_capacity, and "
            "client_behave_trace behind it"
        ) from None
    number = np.array([len(one) for one in windows])
    client = np.repeat(np.arange(len(entries)), number)
    start, end, period = np.array([window for one in windows for window in one]).T
    return {
        "client": client,
        "seconds_per_sample": times[client],
        "uplink": links[client],
        "downlink": links[client],
        "available_from": start,
        "available_to": end,
        "period": period,
    }


def _read_behaviour(entry: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    """Windows of a client: from, to, and period; one that is empty where the client is never there for long."""
    period, ends = float(entry["finish_time"]), sorted(float(at) for at in entry["inactive"])
    found = []
    for start in sorted(float(at) for at in entry["active"]):
        end = min(next((at for at in ends if at > start), period), period)
        if start < end:
            found.append((start, end, period))
    return found or [(0.0, np.nextafter(0.0, 1.0), period)]


def convert_mobiperf(records: Iterable[Mapping[str, Any]], clients: int | None = None) -> Rows:
    """Returns bandwidth and latency of each device over the days, from MobiPerf's measurements.

    Throughput (`tcp_speed_results`, kbit/s, their median; upwards where `dir_up` is true) and pings (`mean_rtt_ms`,
    both ways) are grouped by device. A measurement holds until the next of its kind; the days of a device begin anew
    behind the last one. Devices without any throughput are left out.

    Args:
        records: Of the raw data (`type`, `device_id`, `timestamp` in microseconds, `parameters`, `values`), or of the
            lists that papers give on (`tcp_speed_results` of a device each, downwards).
        clients: How many of the devices are taken; None: all.

    Raises:
        ValueError: None of them is a throughput.
    """
    devices: dict[str, list[tuple[float, str, float]]] = {}
    for place, record in enumerate(records):
        found = _read_measurement(record)
        if found is not None:
            key = str(record.get("device_id") or record.get("guid") or f"record {place:09d}")
            devices.setdefault(key, []).append(found)
    chosen = [one for _, one in sorted(devices.items()) if any(kind != "latency" for _, kind, _ in one)][:clients]
    if not chosen:
        raise ValueError("the files are not those of MobiPerf: no record has tcp_speed_results: give its JSON files")
    parts = [_list_links(client, series) for client, series in enumerate(chosen)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _read_measurement(record: Any) -> tuple[float, str, float] | None:
    """Returns seconds, figure and value of a record, or None where it says nothing that can be used."""
    if not isinstance(record, Mapping):
        return None
    values, parameters = (_as_mapping(record.get(key)) for key in ("values", "parameters"))
    values = values or record
    try:
        seconds = float(record.get("timestamp") or 0.0) / 1e6
        if values.get("mean_rtt_ms") is not None:
            return seconds, "latency", float(values["mean_rtt_ms"]) / 2000.0
        speeds = values.get("tcp_speed_results")
        speeds = json.loads(speeds) if isinstance(speeds, str) else speeds
        speed = float(np.median([float(one) for one in speeds])) * 1000.0 / 8.0 if speeds else 0.0
    except (TypeError, ValueError):
        return None
    is_up = str(parameters.get("dir_up", False)).lower() == "true"
    return (seconds, "uplink" if is_up else "downlink", speed) if np.isfinite(speed) and speed > 0 else None


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list_links(client: int, series: Sequence[tuple[float, str, float]]) -> Rows:
    """Returns the rows of a device: every value at each moment at which one of them was measured."""
    ordered = sorted(series)
    first = {kind: value for _, kind, value in reversed(ordered)}
    moments = sorted({at for at, _, _ in ordered})
    rows = []
    for moment in moments:
        first |= {kind: value for at, kind, value in ordered if at == moment}
        rows.append([first.get(kind, np.nan) for kind in ("uplink", "downlink", "latency")])
    start = np.array(moments) - moments[0]
    uplink, downlink, latency = np.array(rows).T
    period = DAY * (start[-1] // DAY + 1)
    return {
        "client": np.full(len(start), client),
        "link_from": start,
        "period": np.full(len(start), period),
        "uplink": uplink,
        "downlink": downlink,
        "latency": latency,
    }


def write_trace(rows: Rows, out: Path) -> None:
    """Writes a trace by the ending of its name."""
    if out.suffix not in (".csv", ".parquet"):
        raise ValueError(f"--out {out}: a trace is a table: give a name that ends with .csv or .parquet")
    frame = pd.DataFrame(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        frame.to_csv(out, index=False, float_format="%.9g")
    else:
        frame.to_parquet(out, index=False)
    print(f"{out}: {frame['client'].nunique():,} clients, {len(frame):,} rows, columns {', '.join(frame)}")


def main() -> None:
    """Runs the program. For bad input it prints one line and returns status 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    fedscale = kinds.add_parser("fedscale", help="client_device_capacity, and client_behave_trace if it is given")
    fedscale.add_argument("capacity", type=Path)
    fedscale.add_argument("behaviour", type=Path, nargs="?")
    mobiperf = kinds.add_parser("mobiperf", help="JSON files: bandwidths and latencies that change over time")
    mobiperf.add_argument("files", type=Path, nargs="+")
    for kind in (fedscale, mobiperf):
        kind.add_argument("--out", type=Path, required=True, help="the trace, .csv or .parquet")
        kind.add_argument("--clients", type=int, help="how many clients are taken (default: all)")
    given = parser.parse_args()
    if given.clients is not None and given.clients < 1:
        parser.error(f"--clients {given.clients}: give at least 1")
    try:
        if given.kind == "fedscale":
            kept = None if given.behaviour is None else read_objects(given.behaviour)
            rows = convert_fedscale(read_objects(given.capacity), kept, given.clients)
        else:
            found = [read_objects(path) for path in given.files]
            records = [record for one in found for record in (one if isinstance(one, list) else [one])]
            rows = convert_mobiperf(records, given.clients)
        write_trace(rows, given.out)
    except (OSError, ValueError) as error:
        print(f"traces: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
