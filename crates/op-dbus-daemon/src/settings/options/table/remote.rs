//! The remote provider, whose options are our own.

use super::super::super::kind::{Choice, Kind};
use super::super::{ProviderOption, fleet};
use super::{count, name, remote};

const PROTOCOLS: &[Choice] = &[name("oip"), name("openai")];
const INPUTS: &[Choice] = &[name("token-ids"), name("texts")];
const MODEL: Kind =
    Kind::Text { accepted: "a name of letters, digits and `._-/:@+`", is_right: fleet::is_model };
const PATH: Kind = Kind::Path { optional: false };

/// Its options, in the order in which they are shown.
pub const OPTIONS: &[ProviderOption] = &[
    remote(
        "endpoints",
        Kind::List { accepted: fleet::ACCEPTED, is_right: fleet::is_right },
        "",
        "Where servers answer, without the path of a protocol. Where `execution_provider` is \
        `remote`, `gpu_device` names by their numbers, from 0, which of them get workers; the \
        others stand by.",
    ),
    remote(
        "protocol",
        Kind::Choice(PROTOCOLS),
        "oip",
        "How servers are spoken to: `oip` is the Open Inference Protocol v2, over HTTP or, at a \
        URL that begins with `grpc://` or `grpcs://`, over gRPC; `openai` is `/v1/embeddings`.",
    ),
    remote(
        "inputs",
        Kind::Choice(INPUTS),
        "token-ids",
        "What servers are sent: the token ids of each text, or, for servers that take nothing \
        else, a text that has just these tokens, cut where the model here cuts it.",
    ),
    remote("model", MODEL, "", "The model's name on the servers. By itself it is the name here."),
    remote(
        "token_file",
        PATH,
        "",
        "A file with the token that servers are shown as `Authorization: Bearer`. By itself the \
        credential `remote-token`, if the service has one.",
    ),
    remote(
        "ca_file",
        PATH,
        "",
        "A file with the certificates, in PEM form, that servers are to be certified by. By itself \
        the credential `remote-ca`, if the service has one, or Mozilla's list, as it was when \
        op-dbus was built.",
    ),
    remote(
        "allow_http",
        Kind::Bool,
        "false",
        "Whether an endpoint that is neither `localhost` nor a loopback address may have `http` \
        or `grpc`, which everybody on the way can read.",
    ),
    remote("rows_max", count(1, 512), "64", "Texts of one request; as many as the servers take."),
    remote(
        "request_timeout_s",
        count(1, 50),
        "10",
        "Seconds that one request may take; while another endpoint can be asked, no more than half \
        of what is left of `batch_timeout_s`.",
    ),
    remote(
        "batch_timeout_s",
        count(1, 50),
        "20",
        "Seconds that one batch may take, with all endpoints that are tried and the rests between; \
        then, or as soon as none can be asked again by then, the worker counts as lost. No more than the setting of this name outside the table. \
        Clients of D-Bus wait for 25 by themselves.",
    ),
    remote(
        "attempts_max",
        count(1, 10),
        "2",
        "How often one batch is tried that servers fail while they prove themselves right, each \
        time at another one if there is one; then its texts are tried alone. Servers that turn it \
        away and compute nothing do not keep it from one that was not asked yet.",
    ),
];
