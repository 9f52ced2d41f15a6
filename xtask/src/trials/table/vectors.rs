//! Vectors that are right under stress, and what holds for the whole: order, secrets.

use super::super::quality;
use super::{How, Trial};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T41",
        name: "golden-vectors",
        promise: "every level has the vectors of sentence-transformers, in each precision and engine",
        bar: "cosine 0.99999 (f32), 0.9999 (f16), 0.9998 and 0.9999 on average (bf16), 0.995 and 0.9995 \
              on average (int8) at least",
        how: How::Tests(&[
            "correctness::low_matches_the_references",
            "correctness::medium_matches_the_references",
            "correctness::high_matches_the_references",
            "correctness::low_is_near_the_references_in_bf16",
            "correctness::medium_is_near_the_references_in_bf16",
            "correctness::high_is_near_the_references_in_bf16",
            "correctness::low_is_near_the_references_in_int8",
            "correctness::medium_is_near_the_references_in_int8",
            "correctness::high_is_near_the_references_in_int8",
            "correctness::low_is_near_the_references_in_f16",
            "correctness::medium_is_near_the_references_in_f16",
            "correctness::high_is_near_the_references_in_f16",
            "correctness::low_matches_the_references_through_onnx_runtime",
            "correctness::medium_matches_the_references_through_onnx_runtime",
            "correctness::high_matches_the_references_through_onnx_runtime",
        ]),
        rest: "a GPU",
    },
    Trial {
        number: "T42",
        name: "batch-invariance",
        promise: "a vector depends on its text alone",
        bar: "bit for bit (native), 1e-5 (ONNX Runtime)",
        how: How::Tests(&[
            "correctness::a_vector_does_not_depend_on_its_batch",
            "correctness::a_vector_does_not_depend_on_its_batch_in_bf16",
            "correctness::a_vector_does_not_depend_on_its_batch_in_int8",
            "correctness::a_vector_does_not_depend_on_its_batch_through_onnx_runtime",
            "correctness::a_vector_does_not_depend_on_the_number_of_threads",
        ]),
        rest: "",
    },
    Trial {
        number: "T43",
        name: "cross-talk",
        promise: "64 clients get their own vectors; 1,000,000 replies are compared by `tiny-calls`",
        bar: "0 of another text",
        how: How::Tests(&[
            "correctness::each_of_64_clients_gets_its_own",
            "calls::each_of_64_concurrent_callers_gets_its_own_vectors",
        ]),
        rest: "a million vectors of a model: those of `tiny-calls` are simulated; `soak` compares as many of a model as \
               are computed in its time",
    },
    Trial {
        number: "T44",
        name: "finite",
        promise: "no NaN and no infinity leaves the service, and a worker that makes one is replaced, unless another \
                  one made it of the same text",
        bar: "0; norm 1 where it was asked for",
        how: How::Tests(&[
            "correctness::texts_of_the_largest_size",
            "correctness::vectors_are_normalised_on_demand",
            "worker::tests::vectors_that_were_not_written_are_not_those_of_the_batch_before",
            "faults::a_batch_whose_worker_died_is_run_again",
        ]),
        rest: "vectors of other trials that come otherwise than by `EmbedPacked`, of which each is looked at",
    },
    Trial {
        number: "T45",
        name: "quality",
        promise: "pairs of texts stay in the order that people put them in, in each precision",
        bar: "Spearman 0.5 points below the reference at most",
        how: How::Task(quality::try_out),
        rest: "a GPU; other texts than English sentences; precisions that the CPU of the run has not, and \
               in a quick one f16, which takes ONNX Runtime",
    },
    Trial {
        number: "T46",
        name: "histories",
        promise: "queue, dispatch and shutdown keep every promise in any order of events",
        bar: "each call ends once, with its own vectors; permits return; tokens and batches are within their bounds \
              all along; 100,000 histories by their seeds",
        how: How::Tests(&["dispatch::histories::every_history_keeps_every_promise"]),
        rest: "a choice between two kinds of workers, which goes by the times that batches take",
    },
    Trial {
        number: "T47",
        name: "worker-faults",
        promise: "a worker that panics, hangs, lies or is replaced costs nobody but its own batch",
        bar: "retried once, then the text that kills fails alone",
        how: How::Tests(&[
            "faults::a_batch_whose_worker_died_is_run_again",
            "faults::a_text_that_kills_workers_fails_alone",
            "refusals::a_refused_batch_is_tried_once_more_text_by_text",
            "faults::a_panic_costs_one_worker",
            "faults::a_backend_with_other_vectors_is_not_trusted",
            "faults::a_backend_that_was_right_and_turns_wrong_is_found",
            "a_hanging_process_is_killed_and_stays_lost",
        ]),
        rest: "",
    },
    Trial {
        number: "T48",
        name: "secrets",
        promise: "a text is found nowhere but in the replies to its caller",
        bar: "0 traces of it, or of 32 bytes of its vector, in the log, files, memfds and messages to others; of the \
              text in status, statistics, metrics and refusals; a core dump only where it is asked for; no socket \
              but of this machine",
        how: How::Tests(&[
            "secrets::a_planted_secret_is_found_nowhere",
            "secrets::another_user_is_told_nothing_of_it",
            "cache::another_user_finds_nothing",
            "jobs::nobody_else_learns_of_a_job",
            "sandbox::no_socket_leads_off_the_machine",
            "sandbox::no_socket_of_onnx_runtime_leads_off_the_machine",
            "gateway::texts_stay_out_of_the_log",
            "sandbox::nobody_is_dumped_where_dumps_are_piped",
            "sandbox::a_daemon_leaves_a_core_dump_only_where_it_is_asked_for",
        ]),
        rest: "memory of the daemon and its workers after a call; a remote provider, which is there to \
               send texts elsewhere",
    },
];
