import pytest

from paceline.trainer.identity import (
    JOB_CHARACTERS_MAX,
    Sourced,
    Surroundings,
    job_identity,
    parse_pid_start,
    provisional_attempt,
    read_gpu,
    read_ranks,
    settled_attempt,
    slurm_job,
)

K8S = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
NOWHERE = Surroundings()


def test_declared_wins_over_everything() -> None:
    environment = {"PACELINE_JOB_ID": "env", "SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "run", **K8S}
    assert job_identity(environment, NOWHERE, "said") == Sourced("said", "declared")
    assert job_identity(environment, NOWHERE) == Sourced("env", "declared")


def test_order_slurm_kubernetes_torchrun_generated() -> None:
    pod = Surroundings(hostname="llama-worker-3", pod_namespace="team")
    environment = {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "run", **K8S}
    assert job_identity(environment, pod) == Sourced("slurm-7", "slurm")
    del environment["SLURM_JOB_ID"]
    assert job_identity(environment, pod) == Sourced("k8s-team-llama", "kubernetes")
    del environment["KUBERNETES_SERVICE_HOST"]
    assert job_identity(environment, pod) == Sourced("run", "torchrun")
    environment["TORCHELASTIC_RUN_ID"] = "none"
    assert job_identity(environment, pod).source == "generated"


def test_slurm_array() -> None:
    environment = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "1"}
    assert slurm_job(environment, "") == "slurm-8_1"


def test_cgroup_confirms_or_corrects_slurm() -> None:
    cgroup = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
    assert slurm_job({"SLURM_JOB_ID": "42"}, cgroup) == "slurm-42"
    assert slurm_job({"SLURM_JOB_ID": "41"}, cgroup) == "slurm-42", (
        "variables were inherited from another job"
    )
    assert slurm_job({}, cgroup) == "slurm-42"


@pytest.mark.parametrize(
    ("environment", "around", "owner"),
    [
        ({"PACELINE_POD_OWNER": "own"}, Surroundings(pod_namespace="ns"), "k8s-ns-own"),
        ({"POD_NAMESPACE": "ns"}, Surroundings(pod_labels='job-name="mnist"\n'), "k8s-ns-mnist"),
        (
            {},
            Surroundings(pod_labels='job-name="inner"\ntraining.kubeflow.org/job-name="outer"\n'),
            "k8s-outer",
        ),
        ({"JOB_COMPLETION_INDEX": "4", "POD_NAME": "train-4"}, NOWHERE, "k8s-train"),
        ({"HOSTNAME": "bert-master-0"}, NOWHERE, "k8s-bert"),
    ],
)
def test_pod_owner(environment: dict[str, str], around: Surroundings, owner: str) -> None:
    assert job_identity({**K8S, **environment}, around) == Sourced(owner, "kubernetes")


def test_pod_without_owner_falls_through() -> None:
    around = Surroundings(hostname="plain-pod-xyz12", parent="p")
    assert job_identity(dict(K8S), around).source == "generated"


def test_generated_is_equal_on_all_ranks_and_differs_between_jobs() -> None:
    job = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "8"}
    ranks = {
        job_identity({**job, "RANK": str(rank)}, Surroundings(parent=str(rank))).value for rank in range(8)
    }
    assert len(ranks) == 1
    assert job_identity({**job, "MASTER_PORT": "29501"}, NOWHERE).value not in ranks
    by_file = job_identity({}, Surroundings(init_method="file:///x", parent="a"))
    assert by_file == job_identity({}, Surroundings(init_method="file:///x", parent="b"))


def test_hostile_names_are_cut_and_cleaned() -> None:
    value = job_identity({"PACELINE_JOB_ID": "a\nb" + "ü" * 200}, NOWHERE).value
    assert value.startswith("a_b")
    assert len(value.encode()) <= JOB_CHARACTERS_MAX


def test_attempts() -> None:
    environment = {"TORCHELASTIC_RESTART_COUNT": "2"}
    provisional = provisional_attempt(environment)
    assert provisional == Sourced("r2", "provisional")
    assert settled_attempt(environment, provisional, "abc") == Sourced("r2-abc", "store")
    assert settled_attempt(environment, provisional, "") == Sourced("r2", "restart_count")
    declared = provisional_attempt({"PACELINE_ATTEMPT": "x"})
    assert declared == Sourced("x", "declared")
    assert settled_attempt(environment, declared, "abc") == declared
    assert provisional_attempt({"TORCHELASTIC_RESTART_COUNT": "many"}).value == "r0"


def test_ranks_of_each_launcher() -> None:
    torchrun = read_ranks({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "9"})
    assert (torchrun.rank, torchrun.world_size, torchrun.local_rank) == (3, 8, 1)
    slurm = read_ranks({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"})
    assert (slurm.rank, slurm.world_size, slurm.local_rank) == (3, 8, 1)
    unknown = read_ranks({"RANK": "-1"})
    assert (unknown.rank, unknown.world_size, unknown.local_rank) == (-1, 0, -1)


def test_pid_start_survives_a_hostile_command_name() -> None:
    fields = " ".join(str(number) for number in range(3, 53))
    assert parse_pid_start(f"12 (a) 1 (b c) {fields}") == 22
    assert parse_pid_start("12 (torn") == 0
    assert parse_pid_start("") == 0


@pytest.mark.parametrize(
    ("environment", "local_rank", "devices", "gpu"),
    [
        ({}, 3, 8, 3),
        ({}, 3, 0, None),
        ({}, -1, 8, None),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 1, 8, 5),
        ({"CUDA_VISIBLE_DEVICES": "6"}, 1, 8, 6),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f2a"}, 0, 8, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, 8, None),
    ],
)
def test_gpu_of_a_rank(environment: dict[str, str], local_rank: int, devices: int, gpu: int | None) -> None:
    assert read_gpu(environment, local_rank, devices) == gpu
