"""The closed vocabulary of detection: why something is a stall, and why it is not."""

from enum import IntEnum


class Reason(IntEnum):
    """Why a decision was taken. Numbers are kept in snapshots: append, never renumber."""

    NONE = 0
    NO_PROGRESS = 1  # a head of line is older than the floor and nobody of its communicator moves
    LEARNED_LIMIT = 2  # as above, against the learned limit of a communicator that waits long as a rule
    PHASE_LIMIT = 3  # older than a declared phase may last
    WARMUP_LIMIT = 4  # older than the first step may last
    BACKSTOP = 5  # older than anything may be, whoever else progresses
    MEMBER_DEAD = 6  # a member's process died while others wait
    MEMBER_FROZEN = 7  # a member's process is stopped or frozen while others wait
    P2P_NO_PROGRESS = 8  # an open send or receive is older than the floor
    PROCESS_DEAD = 9  # a process died in disorder; nobody needs to wait for it
    HOST_WAIT = 10  # a wait outside any collective is older than the backstop
    RAGGED_END = 11  # peers wait for a rank that ended in order, longer than an end may take
    SLOW_ROUNDS = 12  # rounds of one key are slow again and again
    PROGRESS = 13  # what was stalled or slow progresses
    JOB_ENDED = 14  # every process ended
    JOB_RECORD_ENDED = 15  # the registry says that the attempt is over
    ATTEMPT_REPLACED = 16  # a newer attempt of the same job reports
    OTHER_SHARD = 17  # another shard suspects the job
    SILENT = 18  # nothing heard of the job for very long; nobody knows how it ended
    SLOW_STEPS = 20  # steps take longer than usual, whatever makes them
    WINDOW = 21  # a window of iterations is full


class Gate(IntEnum):
    """Why the short limits do not apply."""

    NONE = 0
    PHASE = 1  # a rank declares a phase other than training
    WARMUP = 2  # the first step is not done
    SUSPENDED = 3  # every process is stopped
    TRACED = 4  # a debugger holds a process
    ENDING = 5  # ranks end in order, or the job was cancelled


class Refusal(IntEnum):
    """Why a record or a row was not taken; each is counted."""

    DUPLICATE = 0  # seen before, or older than what is held
    RANK_OUT_OF_RANGE = 1
    MEMBERS_FULL = 2
    COMMUNICATORS_FULL = 3
    NODES_FULL = 4
    EXTRA_ROWS_FULL = 5  # evidence rows beyond the bound of one sender
    SEQUENCE_GAP = 6  # not a refusal: records of this sender that never came
    SENDER_RESTARTED = 7  # not a refusal: the sender's sequence began anew
    SUSPECTS_FULL = 8  # stalled communicators beyond those followed one by one, at each tick
    SLOW_KEYS_FULL = 9  # slow rounds of keys beyond those followed one by one
    SLOW_VALUES_FULL = 10  # rounds not kept as evidence of slowness, their values would be too many
    ROUND_WINDOW_FULL = 11  # round rows that found no free cell
    ROUND_KEYS_FULL = 12  # complete rounds of keys beyond those of one communicator
    ITERATION_ROWS_FULL = 13  # round rows beyond those that one window of iterations holds
