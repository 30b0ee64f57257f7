"""Findings about scaling as rows. They open no incident and page nobody (docs/adr/0024)."""

from dataclasses import asdict

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.scaling import CV_MAX, FINDINGS_MAX, RANKS_MAX, ScalingRecord
from paceline.contracts.schemas import ContractError
from paceline.store.base import JsonObject
from paceline.store.repositories.scaling import ScalingRepository
from paceline.store.times import from_unix

TEXT_LENGTH_MAX = 4000
NAME_LENGTH_MAX = 300
NUMBER_MAX = 2**53
INPUTS_MAX = 64  # figures of one finding


async def write_window(session: AsyncSession, record: ScalingRecord, windows_max: int) -> bool:
    """Store one window; the same one again changes nothing. ContractError where it cannot be stored."""
    return await ScalingRepository(session).add(to_row(record), windows_max)


def to_row(record: ScalingRecord) -> JsonObject:
    """Checked columns of a record."""
    for name in ("id", "job", "attempt"):
        _check_text(name, getattr(record, name), NAME_LENGTH_MAX)
    _check_text("refused", record.refused, TEXT_LENGTH_MAX)
    for name in ("first_step", "last_step", "iterations", "ranks", "ranks_expected"):
        value = getattr(record, name)
        if not 0 <= value <= NUMBER_MAX:
            raise ContractError(f"ScalingRecord: {name} is {value}, expected 0 to {NUMBER_MAX}")
    for name, limit in (("cv", CV_MAX), ("findings", FINDINGS_MAX)):
        if len(getattr(record, name)) > limit:
            raise ContractError(
                f"ScalingRecord: {name} has {len(getattr(record, name))} entries, expected at most {limit}"
            )
    figures = [record.step_s, *record.cv, *(finding.cost_share for finding in record.findings)]
    if not all(0 <= figure < 1e9 for figure in figures):  # also false for NaN
        raise ContractError("ScalingRecord: step_s, cv and cost_share have to be finite and not negative")
    for finding in record.findings:
        texts = (finding.statement, finding.place, *finding.inputs, *finding.inputs.values())
        for text in texts:
            _check_text("findings", text, TEXT_LENGTH_MAX)
        for name, limit in (("ranks", RANKS_MAX), ("inputs", INPUTS_MAX)):
            count = len(getattr(finding, name))
            if count > limit:
                raise ContractError(
                    f"ScalingRecord: findings.{name} has {count} entries, expected at most {limit}"
                )
    try:
        judged_at = from_unix(record.judged_unix_s)
    except ValueError as error:
        raise ContractError(f"ScalingRecord: judged_unix_s: {error}") from None
    row = asdict(record)
    del row["judged_unix_s"]
    findings = [
        {**asdict(finding), "mode": finding.mode.value, "ranks": list(finding.ranks)}
        for finding in record.findings
    ]
    return {**row, "cv": list(record.cv), "findings": findings, "judged_at": judged_at}


def _check_text(name: str, text: str, length_max: int) -> None:
    if len(text) > length_max or "\x00" in text:
        raise ContractError(
            f"ScalingRecord: {name} is {text[:40]!r}, expected at most {length_max} characters without NUL"
        )
