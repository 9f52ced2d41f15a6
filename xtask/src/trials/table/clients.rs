//! Hostile or clumsy clients.

use super::{Clock, How, Trial};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T21",
        name: "deaf-client",
        promise: "a client that never reads its replies is nobody's business but its own",
        bar: "p99 of another client within 1.2 times its own without it; the daemon grows by 16 MiB \
              at most",
        how: How::Program(Clock::Timed),
        rest: "introspection, properties, refusals and the manager's replies are not held back: 127 MiB of those, \
               unread, have the service started anew on dbus-daemon: see Operate",
    },
    Trial {
        number: "T22",
        name: "quitters",
        promise: "10,000 clients that leave in the middle of a call leave nothing behind",
        bar: "0 calls in flight, 0 descriptors and 20 MiB more than before at most",
        how: How::Program(Clock::Counts),
        rest: "",
    },
    Trial {
        number: "T23",
        name: "huge-requests",
        promise: "a request of 1 GiB is refused before it is read whole: inline, in a memfd, over HTTP",
        bar: "refused, the memfd by `TooLarge`; the daemon and the gateway grow by 24 MiB at most",
        how: How::Program(Clock::Counts),
        rest: "",
    },
    Trial {
        number: "T24",
        name: "hostile-descriptors",
        promise: "no descriptor hangs, kills or fools the service",
        bar: "unsealed, shrinking, sparse, directory, socket, write-only: each refused by name; endless and \
              silent: each ended; more that hang when they are closed than there are threads: the next 100 \
              calls are answered; more than a connection may have, or than the service can take: the call is \
              refused, and the next is answered",
        how: How::Tests(&[
            "bulk::hostile_descriptors_are_refused",
            "bulk::descriptors_whose_closing_hangs_hold_up_nobody",
            "bulk::pipes::a_pipe_that_never_ends_is_ended",
            "bulk::pipes::a_silent_pipe_is_ended",
            "hostile::descriptors_of_calls_that_wait_have_a_bound",
            "hostile::without_descriptors_the_service_keeps_its_bus",
        ]),
        rest: "",
    },
    Trial {
        number: "T25",
        name: "descriptor-flood",
        promise: "10,000 messages with 16 descriptors each are answered, and all descriptors closed",
        bar: "0 descriptors more than before; 512 open at once at most",
        how: How::Program(Clock::Counts),
        rest: "253 descriptors in a message, which dbus-broker passes on: dbus-daemon takes 16",
    },
    Trial {
        number: "T26",
        name: "awkward-texts",
        promise: "no text breaks the service: it has a finite vector or an error with its place",
        bar: "control characters, marks, floods of zero width, 1 MiB without a space; bytes that are \
              no UTF-8 are refused",
        how: How::Tests(&[
            "hostile::awkward_texts_have_a_vector_or_a_refusal",
            "correctness::texts_of_the_largest_size",
            "bus::bulk::framing::tests::what_is_no_text_is_refused_with_its_place",
            "tokenizer::tests::any_text_is_its_bytes",
        ]),
        rest: "",
    },
    Trial {
        number: "T27",
        name: "malformed-calls",
        promise: "every method and property answers arguments of every type, and none ends the service",
        bar: "0 crashes, 0 hangs; each error has a name",
        how: How::Tests(&[
            "hostile::malformed::every_member_answers_arguments_of_every_type",
            "hostile::malformed::every_method_answers_random_arguments",
        ]),
        rest: "AddressSanitizer: the calls, 3,000 of them at random, 100,000 in full, are made in the ordinary \
               build; arguments that a fuzzer chooses by coverage are T52's, without a bus",
    },
    Trial {
        number: "T28",
        name: "fair-share",
        promise: "a user with 64 connections leaves the others their share, whose work is bulk as well",
        bar: "each of three others has 80 % of an equal share at least; in CI, where the machine may be busy, 40 % \
              decides",
        how: How::Program(Clock::Timed),
        rest: "that a refusal names the limit: the test `errors::used_up_quota` shows it",
    },
    Trial {
        number: "T29",
        name: "no-privilege",
        promise: "who may not change the service changes nothing",
        bar: "AccessDenied; nothing written",
        how: How::Tests(&[
            "access::polkit_lets_through_and_refuses",
            "access::without_polkit_nothing_is_let_through",
            "access::a_group_alone_embeds",
            "jobs::nobody_else_learns_of_a_job",
        ]),
        rest: "",
    },
    Trial {
        number: "T30",
        name: "name-squatting",
        promise: "nobody but the service's user owns its name",
        bar: "refused by the shipped policy",
        how: How::Tests(&["access::the_service_alone_owns_the_name"]),
        rest: "",
    },
    Trial {
        number: "T31",
        name: "subject-race",
        promise: "polkit decides about a connection, never about a process id",
        bar: "the subject is `system-bus-name` with the caller's name, and nothing else",
        how: How::Tests(&["access::polkit_is_asked_about_the_caller"]),
        rest: "",
    },
    Trial {
        number: "T32",
        name: "hostile-http",
        promise: "other hosts' pages, idle connections, slow and endless requests cost the gateway \
                  nothing that others need",
        bar: "403, 408, 413 or 429; requests in flight bounded",
        how: How::Tests(&[
            "gateway::limits::what_is_too_large_is_refused",
            "gateway::limits::a_full_gateway_says_when_to_come_back",
            "gateway::limits::a_page_of_another_name_gets_nothing",
            "gateway::limits::a_client_that_leaves_cancels_its_work",
            "gateway::limits::idle_connections_keep_nobody_out",
            "gateway::limits::heads_without_bodies_keep_nobody_out",
            "body::tests::a_slow_body_has_its_time_and_less_where_room_is_short",
            "body::tests::who_is_still_sending_when_refused_is_not_broken_off",
        ]),
        rest: "",
    },
];
