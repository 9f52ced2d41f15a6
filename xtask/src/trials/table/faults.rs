//! Faults that are brought about on purpose.

use super::{Clock, How, Trial};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T7",
        name: "state-killed",
        promise: "the state, the cache and a store of models survive kill -9 at every system call of a write",
        bar: "the file is the old or the new one, the start never fails; a model is whole or not there, the \
              next import succeeds; nothing is left over",
        how: How::Tests(&[
            "crashes::the_state_survives_a_kill_at_every_system_call",
            "state::tests::damage_is_never_half_believed",
            "crashes::an_import_survives_a_kill_at_every_system_call",
            "crashes::a_removal_survives_a_fault_at_every_system_call",
            "crashes::cached::a_file_survives_a_fault_at_every_system_call",
            "native::a_worker_killed_while_it_packs_leaves_nothing",
        ]),
        rest: "500 points: some 15 calls of a write of the state, some 20 of the cache, 75 of an import and 30 of a \
               removal are all that there are, and all are hit",
    },
    Trial {
        number: "T8",
        name: "no-room",
        promise: "a full disk, EIO or EROFS at any system call of a write of the state, the cache or an \
                  import is told; what was there stays",
        bar: "the error names the file, the old state is kept, the service goes on; no part of a model is \
              installed",
        how: How::Tests(&[
            "faults::a_state_that_cannot_be_kept",
            "crashes::the_state_survives_an_error_at_every_system_call",
            "crashes::an_import_survives_an_error_at_every_system_call",
            "models::a_cache_without_room_is_done_without",
            "models::a_cache_that_cannot_be_written_is_done_without",
            "crashes::a_removal_survives_a_fault_at_every_system_call",
            "crashes::cached::a_file_survives_a_fault_at_every_system_call",
        ]),
        rest: "the `write` of a state is tried with a full disk alone",
    },
    Trial {
        number: "T9",
        name: "state-damaged",
        promise: "a damaged state is moved aside and told, never half believed, never a crash loop",
        bar: "every bit of every byte flipped, every length truncated, empty, huge, deeply nested",
        how: How::Tests(&[
            "state::tests::damage_is_never_half_believed",
            "state::tests::what_cannot_be_used_is_moved_aside",
            "state::tests::something_else_in_its_place_stays",
            "lifecycle::a_damaged_state_file_is_moved_aside",
        ]),
        rest: "",
    },
    Trial {
        number: "T10",
        name: "model-damaged",
        promise: "a damaged, truncated, wrong or missing file of a model makes its level unavailable, \
                  and no other",
        bar: "`ModelCorrupt` names the file; other levels serve",
        how: How::Tests(&[
            "models::damaged_files_are_named",
            "models::a_damaged_record_is_named",
            "models::another_level_still_serves",
            "models::a_repaired_model_is_served_after_a_reload",
        ]),
        rest: "",
    },
    Trial {
        number: "T11",
        name: "worker-killed",
        promise: "a worker that is killed, hangs or computes nonsense costs one retry and no text",
        bar: "0 calls lost; a vector again within 5 s of each kill",
        how: How::Program(Clock::Timed),
        rest: "hanging, panics, NaN and a text that kills are shown by the engine's tests, which \
               `worker-faults` runs",
    },
    Trial {
        number: "T12",
        name: "device-lost",
        promise: "a device that is lost is left and taken again; strict mode says so",
        bar: "0 calls lost; the fallback is told",
        how: How::Tests(&[
            "providers::a_worker_lost_on_the_device_is_replaced_there",
            "providers::a_device_that_stays_bad_is_left_and_comes_back",
            "devices::a_damaged_library_of_the_driver_takes_nobody_along",
            "offload::calls_outlive_a_device_that_is_killed_and_lost",
            "failing_devices::one_that_fails_whatever_it_is_asked_is_left_without_a_lost_call",
        ]),
        rest: "a GPU: CUDA's own sticky errors",
    },
    Trial {
        number: "T13",
        name: "device-full",
        promise: "a batch that does not fit the device is halved, and no text is lost",
        bar: "halved 3 times at most, same vectors; after that a new worker on a device, text by text elsewhere",
        how: How::Tests(&[
            "out_of_memory::a_batch_that_does_not_fit_is_halved",
            "out_of_memory::a_batch_of_which_no_eighth_fits_is_computed_text_by_text",
            "out_of_memory::a_text_that_fits_nowhere_fails_alone",
            "out_of_memory::a_worker_without_memory_on_its_device_is_replaced_and_gets_smaller_batches",
            "out_of_memory::a_device_that_has_no_memory_for_texts_is_given_up",
            "faults::a_batch_larger_than_a_worker_may_be",
        ]),
        rest: "a GPU's memory",
    },
    Trial {
        number: "T14",
        name: "sleep",
        promise: "devices are let go before the machine sleeps, and the first call after it is right",
        bar: "the inhibitor ends after the workers, the call that waits is answered",
        how: How::Tests(&["memory::devices_are_released_for_a_sleep"]),
        rest: "a real suspend; that it takes 2 s at most",
    },
    Trial {
        number: "T15",
        name: "bus-dies",
        promise: "a bus that dies ends the daemon with a sentence, for systemd to start it again",
        bar: "the daemon and its workers end; the next one serves",
        how: How::Tests(&[
            "lifecycle::a_bus_that_dies_ends_the_daemon",
            "faults::workers_end_with_their_daemon",
        ]),
        rest: "the time to it",
    },
    Trial {
        number: "T16",
        name: "out-of-memory",
        promise: "when memory runs out a worker dies first, and is counted and replaced",
        bar: "the daemon survives; `worker_restarts` counts it",
        how: How::Tests(&[
            "lifecycle::workers_go_first_when_memory_runs_out",
            "faults::a_worker_killed_in_a_batch",
            "units::systemd_understands_every_unit",
        ]),
        rest: "the kernel's own killer in a cgroup that is full",
    },
    Trial {
        number: "T17",
        name: "cache-damaged",
        promise: "what was compiled elsewhere or is damaged is made again, never loaded",
        bar: "same vectors; the log says so",
        how: How::Tests(&[
            "models::damaged_weights_in_the_cache_are_packed_again",
            "models::damaged_graphs_in_the_cache_are_built_again",
            "native::its_calibration_is_kept",
            "service::compiled::tests::whatever_the_content_depends_on_changes_the_folder",
            "service::compiled::tests::workers_of_two_models_have_no_folder_in_common",
            "service::costs::tests::whatever_costs_depend_on_changes_the_place",
            "service::costs::tests::what_is_kept_is_read_again_and_what_is_damaged_is_not",
        ]),
        rest: "TensorRT's own plans, which need its device",
    },
    Trial {
        number: "T18",
        name: "model-replaced",
        promise: "a model that is replaced while it serves is served only once it was verified",
        bar: "no vector of the new model under the old name; what is mapped keeps serving",
        how: How::Tests(&[
            "native::a_model_that_was_replaced_is_not_served_under_the_old_name",
            "models::a_repaired_model_is_served_after_a_reload",
            "imports::a_reload_takes_up_what_the_store_has_by_now",
        ]),
        rest: "",
    },
    Trial {
        number: "T19",
        name: "daemon-killed",
        promise: "kill -9 under load, 200 times: the state stays, nothing is left lying",
        bar: "0 changes of state lost, 0 failed starts, 0 files and 0 workers left over; ready again within 1 s",
        how: How::Program(Clock::Timed),
        rest: "files beside the state: vectors are simulated, and nothing is cached",
    },
    Trial {
        number: "T20",
        name: "clock-jumps",
        promise: "a wall clock that jumps by a year ends nothing early and holds up nothing",
        bar: "a call with a deadline outlives both jumps; the next is answered",
        how: How::Tests(&["clock::a_clock_that_jumps_ends_nothing"]),
        rest: "",
    },
];
