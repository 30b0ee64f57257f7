"""A light process that starts one training process, outlives it and carries out orders about it.

    python -m paceline.trainer.supervisor -- python train.py ...

It imports no torch. torchrun, Slurm or `paceline run --repair` starts it in the place of the training
process, so the death of a training process ends no worker of the launcher and restarts no sibling
(docs/adr/0042-supervisors.md).
"""

FD_VARIABLE = "PACELINE_SUPERVISOR_FD"  # the child's end of the socketpair
MEMBER_VARIABLE = "PACELINE_MEMBER"
ROLE_VARIABLE = "PACELINE_ROLE"  # member, standby, or joiner: a cold process in the place of a dead one
