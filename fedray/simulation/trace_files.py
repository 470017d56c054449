"""Files of FedScale and MobiPerf as the rows of a trace (`clients.trace`), for `fedray traces`.

Example:
    >>> rows = convert_fedscale({7: {"computation": 100.0, "communication": 8000.0}})
    >>> {name: values.tolist() for name, values in rows.items()}
    {'client': [0], 'seconds_per_sample': [0.3], 'uplink': [1000000.0], 'downlink': [1000000.0]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.files.pickled_data import read_pickled_data
from fedray.simulation.devices import DAY

TRAINING = 3.0  # a training step takes three inferences: `augmentation_factor` of FedScale's simulator
Rows = dict[str, Any]  # columns, `[n]` each


def read_objects(path: Path) -> Any:
    """The content of a JSON file, a file of a JSON object a line, or a pickle of plain data, which is not unpickled.

    Raises:
        BadInput: It is none of these, or cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: it cannot be read ({error.strerror}): name the file of the trace") from None
    try:
        if content.lstrip()[:1] not in (b"{", b"["):
            return read_pickled_data(content)
        try:
            return json.loads(content)
        except json.JSONDecodeError:
            return [json.loads(line) for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:100]
        raise BadInput(
            f"{path}: it is neither JSON nor a pickle of plain data ({why}): name the file as it came"
        ) from None


def convert_fedscale(capacity: Any, behaviour: Any = None, clients: int | None = None) -> Rows:
    """The rows of FedScale's `client_device_capacity`, with the windows of its `client_behave_trace`.

    `computation` is in ms an inference and `communication` in kbit/s. A client is there from each `active` to the next
    `inactive` moment, again after `finish_time`. Clients are numbered in the order of their keys, and the i-th of them
    has the i-th behaviour, which begin anew when there are fewer.

    Args:
        capacity: Key -> computation and communication.
        behaviour: Key -> active, inactive and finish_time; None: everybody is always there.
        clients: How many of the clients are taken; None: all.

    Raises:
        BadInput: They do not have this form.
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
        raise BadInput(
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
    """The rows of MobiPerf's measurements: bandwidth and latency of each device as they change over its days.

    Throughput (`tcp_speed_results`, kbit/s, their median; upwards where `dir_up` is true) and pings (`mean_rtt_ms`,
    both ways) are grouped by device. A measurement holds until the next of its kind; the days of a device begin anew
    behind the last one. Devices without any throughput are left out.

    Args:
        records: Of the raw data (`type`, `device_id`, `timestamp` in microseconds, `parameters`, `values`), or of the
            lists that papers give on (`tcp_speed_results` of a device each, downwards).
        clients: How many of the devices are taken; None: all.

    Raises:
        BadInput: None of them is a throughput.
    """
    devices: dict[str, list[tuple[float, str, float]]] = {}
    for place, record in enumerate(records):
        found = _read_measurement(record)
        if found is not None:
            key = str(record.get("device_id") or record.get("guid") or f"record {place:09d}")
            devices.setdefault(key, []).append(found)
    chosen = [one for _, one in sorted(devices.items()) if any(kind != "latency" for _, kind, _ in one)][:clients]
    if not chosen:
        raise BadInput("the files are not those of MobiPerf: no record has tcp_speed_results: give its JSON files")
    parts = [_list_links(client, series) for client, series in enumerate(chosen)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _read_measurement(record: Any) -> tuple[float, str, float] | None:
    """Seconds, figure and value of a record; None where it says nothing that can be used."""
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
    """The rows of a device: every figure at each moment at which one of them was measured."""
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
