//! How the program is made: of what, and the same each time.

use super::{How, Trial};
use crate::{reproducible, supply};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T49",
        name: "supply",
        promise: "every dependency has a licence that we may ship, no known hole, and is listed",
        bar: "0 other licences, 0 other sources, 0 advisories that are known; each part in the bill and \
              in the notices",
        how: How::Task(supply::try_out),
        rest: "holes that became known since, wherever RustSec's database could not be fetched: the figure says so",
    },
    Trial {
        number: "T50",
        name: "reproducible",
        promise: "two builds of the same source are the same program",
        bar: "the same SHA-256 of every installed file, built in two folders",
        how: How::Build(reproducible::try_out),
        rest: "two machines, two compilers; the packages around the files",
    },
];
