"""Tables of predicted against true moments."""

from __future__ import annotations

from typing import Any

from docs.tables import networks
from docs.tables.markdown import figures, table


def rules_errors() -> str:
    """Errors of the transfer rules."""
    keys = ("max_error_mean", "max_error_var", "max_var_of_certain")
    rows = [
        [row["function"], row["rule"], *(f"{row[key]:.1e}" if row[key] else "0" for key in keys)]
        for row in figures("rules")["errors"]
    ]
    return table(
        ["function", "rule", "max error of the mean", "of the variance", "variance of a certain input"], rows
    )


def rules_recurrence() -> str:
    """Predicted over true variance in a recurrence."""
    found = figures("rules")["recurrence"]
    names = list(found[0]["ratio"])
    rows = [
        [
            f"{row['drop_input']} / {row['drop_hidden']}",
            str(row["radius"]),
            *(f"{row['ratio'][n]:.3f}" for n in names),
        ]
        for row in found
    ]
    return table(["drop input / hidden", "spectral radius", *names], rows)


def cells_trained() -> str:
    """Predicted over true standard deviation of trained recurrent layers, both variances."""
    rows = [
        [
            row["layer"],
            row["task"],
            f"{row['drop_hidden']}",
            *(f"{row[key]:.2f}" for key in ("diagonal_std_ratio", "traced_std_ratio", "traced_correlation")),
        ]
        for row in figures("cells")["trained"]
    ]
    return table(["layer", "task", "drop", "diagonal", "traced", "correlation of the traced"], rows)


def short() -> str:
    """Stock networks, and ranges over tasks and rates of ours, with random and with trained weights."""
    found = figures("cells")
    rows = networks.accuracy_short()
    for layer in dict.fromkeys(row["layer"] for row in found["trained"]):
        # Roots: the figures of random weights are ratios of variances.
        random = [row["variance_ratio"] ** 0.5 for row in found["random"] if row["layer"] == layer]
        own = [row for row in found["trained"] if row["layer"] == layer]
        ranges = [random, *([row[f"{kind}_std_ratio"] for row in own] for kind in ("diagonal", "traced"))]
        rows.append([f"`fd.nn.{layer}`", *(f"{min(values):.2f} to {max(values):.2f}" for values in ranges)])
    return table(["network", "random weights, diagonal", "trained, diagonal", "trained, traced"], rows)


def cells_random() -> str:
    """Predicted over true variance of recurrent layers with random weights."""
    rows = [
        [
            row["layer"],
            f"{row['drop_input']} / {row['drop_hidden']}",
            f"{row['scale']:.0f}",
            f"{row.get('forget', 1):.0f}" if row["layer"] == "LSTM" else "–",
            row.get("inputs", "gaussian"),
            *(f"{row[key]:.3f}" for key in ("variance_ratio", "mean_error_in_std", "correlation_of_std")),
        ]
        for row in figures("cells")["random"]
    ]
    head = ["layer", "drop input / hidden", "weight scale", "forget bias", "inputs", "variance ratio"]
    return table([*head, "error of the mean / std", "correlation of std"], rows)


def claims_published() -> str:
    """The published models against masks."""
    return _claims("published", ["model"])


def claims_settings() -> str:
    """Small networks by loss and rates against masks."""
    return _claims("settings", ["loss"])


def _claims(name: str, first: list[str]) -> str:
    rows = []
    for row in figures(f"claims-{name}"):
        share = row["var_of_p_over_p_q"]
        rows.append(
            [
                *(row[key] for key in first),
                _rates(row),
                f"{row['variance_ratio']:.2f}",
                f"{row['traced_std_ratio_of_the_last_frame']:.2f}",
                f"{row['offset_of_the_mean']:.2f} / {row['std_of_the_logits']:.1f}",
                f"{share['5%']:.3f} to {share['95%']:.3f}",
                f"{row['nll_of_the_pass']:.2f}",
                f"{row['nll_of_averaged_masks']:.2f}",
            ]
        )
    head = [*first, "drop input / hidden / output", "variance, diagonal / true", "std, traced / true"]
    return table(
        [
            *head,
            "offset of the mean / std",
            "90 % of V[p] / (p (1 - p))",
            "NLL of the pass",
            "NLL of 200 masks",
        ],
        rows,
    )


def claims_masks() -> str:
    """Sampled masks and the same noise integrated out on JSB Chorales."""
    rows = [
        ["masks" if row["method"] == "mask" else "integrated", _rates(row)]
        + [f"{row[split]:.3f}" for split in ("valid", "test")]
        for row in figures("claims-masks")
    ]
    return table(["dropout", "drop input / hidden / output", "valid", "test"], rows)


def _rates(row: dict[str, Any]) -> str:
    return " / ".join(f"{row[key]}" for key in ("drop_input", "drop_hidden", "drop_output"))
