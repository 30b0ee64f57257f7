"""The scripts that any profiler plugin has to survive, and the tests that drive them.

`conftest.py` runs the first test of each letter with the plugin as it is built and once more under
ThreadSanitizer; `test_nccl_scripts.py` sees that no letter is missing and none names a test that is gone.
"""

OPERATIONS, LIFETIME, AGENT = "test_nccl_operations", "test_nccl_lifetime", "test_nccl_agent"
LETTERS = "abcdefghijklmnopqrstuvw"

# letter: (what NCCL does, (module, test)...)
SCRIPTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "a": ("an operation over the network", ((OPERATIONS, "test_a_network_operation_fills_every_field"),)),
    "b": ("NVLink only", ((OPERATIONS, "test_b_without_network_counts_are_unseen_and_not_zero"),)),
    "c": (
        "a tree with two peers below",
        ((OPERATIONS, "test_c_tree_has_edges_to_all_its_neighbours_in_two_trees"),),
    ),
    "d": ("one rank leaves out an operation", ((AGENT, "test_h1_rank_that_does_not_call"),)),
    "e": ("one rank has another count", ((AGENT, "test_h2_rank_with_another_count"),)),
    "f": (
        "a send stays in the network",
        ((OPERATIONS, "test_f_g_slice_stays_in_its_state"), (AGENT, "test_h3_link_that_carries_nothing")),
    ),
    "g": (
        "a send gets no credit",
        ((OPERATIONS, "test_f_g_slice_stays_in_its_state"), (AGENT, "test_h3_link_that_carries_nothing")),
    ),
    "h": ("entered, not launched", ((OPERATIONS, "test_h_entered_and_not_launched"),)),
    "i": ("launched, no kernel", ((OPERATIONS, "test_i_launched_and_no_kernel"),)),
    "j": (
        "an operation of another process",
        ((OPERATIONS, "test_j_operation_of_another_process_is_counted_and_not_touched"),),
    ),
    "k": (
        "a receive started a thousand times",
        ((OPERATIONS, "test_k_receive_started_a_thousand_times_is_one"),),
    ),
    "l": ("waits for credit repeated", ((OPERATIONS, "test_l_repeated_wait_for_credit_counts_once"),)),
    "m": (
        "a graph captured once and replayed",
        ((OPERATIONS, "test_m_replays_of_a_graph_are_counted_beside_the_rounds"),),
    ),
    "n": (
        "eight slices in flight, stopped out of order",
        ((OPERATIONS, "test_n_eight_slices_in_flight_stop_out_of_order_across_channels"),),
    ),
    "o": ("nullptr everywhere", ((OPERATIONS, "test_o_null_parents_names_functions_and_arguments"),)),
    "p": ("seventy communicators", ((LIFETIME, "test_p_seventy_communicators_and_their_slots"),)),
    "q": (
        "late calls after finalize",
        ((LIFETIME, "test_q_late_calls_after_finalize_find_what_they_need"),),
    ),
    "r": ("the mask changes in mid-run", ((LIFETIME, "test_r_detail_is_changed_while_it_runs"),)),
    "s": (
        "two communicators of one hash",
        ((LIFETIME, "test_s_two_communicators_of_one_hash_are_two"),),
    ),
    "t": (
        "SIGKILL, and the agent takes the page back",
        (
            (LIFETIME, "test_t_killed_process_leaves_a_page_that_reads"),
            (AGENT, "test_t_agent_buries_a_killed_process_and_gives_its_page_back"),
        ),
    ),
    "u": (
        "version 4: no calls, and garbage where 2.28 fills nothing in",
        ((OPERATIONS, "test_u_version_four_has_no_calls_and_takes_tasks_for_them"),),
    ),
    "v": ("no memory for a page", ((LIFETIME, "test_v_without_a_page_nccl_is_left_alone"),)),
    "w": (
        "all-to-all as messages in one group",
        ((OPERATIONS, "test_w_all_to_all_of_messages_is_one_round"),),
    ),
}
IN_BOTH_BUILDS = {tests[0][1] for _, tests in SCRIPTS.values()}
