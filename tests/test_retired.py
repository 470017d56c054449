"""Names that a change has retired: no module of the package uses them again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedray

TEXTS = {path: path.read_text() for path in Path(fedray.__file__).parent.rglob("*.py")}
RETIRED = {  # what took their place -> the names
    "fields of a section carry their checks (core/spec.py), and one builder makes it": (
        "pydantic",
        "PlainValidator",
        "TypeAdapter",
        "error_line",
        "_hints_of",
    ),
    "a method is one file, whose SPECS say what scenarios know of it": (
        "BOOSTING_SPECS",
        "CLUSTER_SPECS",
        "CURVATURE_SPECS",
        "FEDBE_OPTIONS",
        "FEDDF_OPTIONS",
        "FENS_SPECS",
        "MEAN_FIELD_SPECS",
        "ONE_SHOT_SPECS",
        "POSTERIOR_SPECS",
        "SAMPLE_SPECS",
        "SLICE_SPECS",
        "STACKING_SPECS",
        "methods_table",
        "scenario.method_options",
        "scenario.spec",
        "scenario.validators",
    ),
    "rows of what cannot act, and of what contradicts (scenario/rows.py)": (
        "check_asynchronous",
        "check_boosting",
        "check_conformal",
        "check_dropout",
        "check_selection",
        "check_stacking",
        "explain_idle_aggregation",
        "explain_idle_invitation",
        "explain_idle_size",
        "explain_idle_width",
        "explain_unread",
        "is_uncounted",
        "_by_method",
        "_by_need",
        "_by_population",
    ),
    "a rule of `advice.py` over the facts of a study": (
        "warn_of_limits",
        "warn_of_left_tiers",
        "warn_of_equal_samples",
        "warn_of_no_proxy_rows",
        "warn_of_lone_rows",
        "warn_of_few_steps",
        "warn_of_unseen_classes",
        "warn_of_untrained_models",
        "lone_rows",
    ),
    "a row of `scenario.names.KINDS` for each kind of a user's own object": (
        *("NameKind", "names.SPECS", "_DECLARED", "_ORIGINS", "KIND_WORDS", "_PLACES", "DEFAULT_NAMES"),
        *("_OBJECT_SECTIONS", "OBJECT_KINDS", "WANTED", "OwnTraining", "OwnKeys", "check_training", "take_training"),
        *(
            "take_rules",
            "check_objects",
            "record_training",
            "require_training",
            "refuse_training",
            "_list_own_rules",
            "_OWN_RULES",
        ),
        *("register_schedule", "register_selection", "find_selection", "find_code", "keep_code", "find_section"),
    ),
    "`own_code.contract.contract` and `check_fields`, for each function and each part of a user's own": (
        *("require_function", "require_number", "check_course", "_guard_fields", "_guard_server", "_guard_compress"),
        *("_guard_local", "_guard_rule", "_check_curvature", "_blame"),
    ),
    "`check_parts`, `check_dataset` and `refuse_rows`, behind every form; a scenario's own checks of options": (
        *("require_arrays", "find_wrong_rows", "find_infinite", "check_reading", "check_data_options"),
        *("check_partition_options", "_check_positive", "SKEW_KEYS", "data.checks", "forms.gaps", "forms.decoding"),
    ),
    "a row of `FORMS` in `data/forms/recognition.py`": (
        "_read_path",
        "open_saved",
        "read_raw",
        "PAIR_OPTIONS",
        "TABLE_OPTIONS",
    ),
}


@pytest.mark.parametrize("name", [name for names in RETIRED.values() for name in names])
def test_no_module_names_what_was_retired(name: str) -> None:
    assert [str(path) for path, text in TEXTS.items() if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)] == []
