//! Hostile files, and an environment that is not ours.

use super::{How, Trial};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T33",
        name: "hostile-links",
        promise: "no link and no path in a model leads out of its folder",
        bar: "refused; nothing of what they lead to is copied, and nothing of the model stays in the store",
        how: How::Tests(&[
            "tests::imports::links_may_not_leave_the_folder",
            "place::folder::tests::a_link_that_is_laid_between_a_look_and_the_opening_is_not_followed",
            "tests::graphs::a_link_to_a_graph_does_not_bring_the_tokenizer_beside_it",
            "own_graphs::a_graph_whose_data_lie_elsewhere_is_not_imported",
            "tests::hostile::damaged_exports_do_no_harm",
        ]),
        rest: "hard links, which are files like others: the kernel's `protected_hardlinks` keeps users from making \
               one of what they may not read",
    },
    Trial {
        number: "T34",
        name: "hostile-graph",
        promise: "whoever takes a worker over through a graph finds nothing there",
        bar: "no file, no socket, no process, no memory beyond its limit",
        how: How::Tests(&[
            "sandbox::whoever_takes_a_worker_over_finds_nothing",
            "faults::a_model_larger_than_a_worker_may_be",
            "own_graphs::a_graph_that_the_library_refuses_ends_nothing",
            "own_graphs::a_graph_without_end_is_ended",
        ]),
        rest: "that a graph is refused within 30 s: one without end takes `batch_timeout_s`, 60 s by itself",
    },
    Trial {
        number: "T35",
        name: "hostile-tokenizer",
        promise: "a damaged tokenizer is refused, and so is one that would make a text cost without end",
        bar: "`ModelCorrupt`, no panic; one byte of a text becomes 2,048 at most; 0.8 GiB for a file, and for a \
              text",
        how: How::Tests(&[
            "tokenizer::tests::damaged_files_are_refused",
            "tokenizer::bounds::steps::tests::normalizers_that_blow_texts_up_are_refused",
            "tokenizer::bounds::steps::tests::patterns_that_blow_up_when_they_are_compiled_are_refused",
            "tokenizer::bounds::tests::vocabularies_that_blow_up_are_refused",
            "tokenizer::bounds::added::tests::added_tokens_that_blow_up_are_refused",
            "tokenizer::bounds::tests::a_file_of_too_many_values_is_refused_before_it_is_parsed",
            "tokenizer::bounds::tests::a_text_that_the_normalizer_blows_up_is_refused",
            "the_costliest_files_and_texts_stay_within_their_bounds",
            "models::damaged_files_are_named",
        ]),
        rest: "it is read and used in the daemon, not in a worker; an expression that goes back and forth on \
               each word takes its time",
    },
    Trial {
        number: "T36",
        name: "hostile-weights",
        promise: "headers that lie are found out before anything is allocated for them",
        bar: "lengths of 2^63, overlaps, every cut and flips: refused, no panic",
        how: How::Tests(&[
            "tests::hostile::random_bytes_are_refused",
            "tests::hostile::damaged_weights_do_no_harm",
            "tests::hostile::impossible_headers_are_refused",
            "tests::hostile::a_header_longer_than_the_file_is_refused",
            "tests::hostile::weights_cut_short_anywhere_are_refused",
            "tests::imports::a_flipped_header_is_no_panic",
            "tests::imports::a_json_file_may_not_be_huge",
        ]),
        rest: "",
    },
    Trial {
        number: "T37",
        name: "digests",
        promise: "what is installed is what the manifest says, by SHA-256 and nothing weaker",
        bar: "wrong, short and long files are not installed",
        how: How::Tests(&[
            "tests::pulls::the_manifest_is_sound",
            "tests::pulls::wrong_short_and_long_files_are_not_installed",
            "tests::records::built_in_models_are_held_to_the_manifest",
        ]),
        rest: "downgrades: the manifest is part of the program, so that there is none to replace",
    },
    Trial {
        number: "T38",
        name: "writable-by-others",
        promise: "files that others may write, or that are others', are refused, with the remedy",
        bar: "refused",
        how: How::Tests(&[
            "tests::records::files_that_others_may_write_are_refused",
            "tests::owners::files_of_somebody_else_are_refused",
            "writers::a_library_that_others_may_write_is_not_loaded",
            "writers::a_configuration_that_others_may_write_is_not_obeyed",
            "writers::cached_weights_that_others_may_write_are_made_anew",
            "writers::a_state_that_others_may_write_is_not_obeyed",
            "kept::tests::what_others_may_write_is_not_opened",
            "tests::cache::a_file_that_others_may_write_is_not_mapped",
            "settings::tests::writers::files_that_others_may_write_are_refused",
            "settings::tests::writers::files_of_somebody_else_are_refused",
            "state::tests::a_file_that_others_may_write_is_moved_aside",
        ]),
        rest: "libraries that a library of the user's own loads in its turn; folders that others may write, \
               which `op-dbus doctor` names",
    },
    Trial {
        number: "T39",
        name: "hostile-archives",
        promise: "an archive that leads out of itself, has a link or a name twice, understates a size or unfolds \
                  without end is refused",
        bar: "refused before it is installed",
        how: How::Tests(&[
            "place::tests::an_archive_may_not_have_a_name_twice",
            "place::tests::an_archive_may_not_have_several_names_of_a_file",
            "place::tests::an_archive_may_not_unfold_without_bound",
            "place::tests::an_archive_may_not_have_a_link_for_a_file",
            "place::tests::an_archive_that_understates_a_size_is_bounded_all_the_same",
            "tests::imports::an_archive_may_not_lead_out_of_itself",
            "tests::pulls::slices_may_not_grow_without_bound",
            "tests::pulls::wrong_short_and_long_files_are_not_installed",
        ]),
        rest: "",
    },
    Trial {
        number: "T40",
        name: "environment",
        promise: "a worker has none of the environment, and nothing of the machine",
        bar: "no attempt of a hostile library succeeds",
        how: How::Tests(&[
            "sandbox::whoever_takes_a_worker_over_finds_nothing",
            "sandbox::every_engine_computes_confined",
            "units::little_is_left_open",
            "settings::tests::precedence::other_programs_variables_offer_defaults",
        ]),
        rest: "a library that `runtime` names need not be root's: that of the service's own user, and of who owns its \
               folder, is loaded as well; the system service ignores `ORT_DYLIB_PATH`",
    },
];
