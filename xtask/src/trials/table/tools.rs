//! What tools find that look for holes by themselves.

use super::{How, Trial};
use crate::fuzz;

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T52",
        name: "fuzz",
        promise: "no bytes from outside panic, hang or damage memory: options, descriptors, files, \
                  bodies, workers, servers",
        bar: "0 inputs that do harm; none takes 10 s or 2 GiB",
        how: How::Task(fuzz::try_out),
        rest: "ten minutes for each target, not a night",
    },
    Trial {
        number: "T53",
        name: "sanitizers",
        promise: "what is `unsafe` reads and writes nothing but its own memory",
        bar: "0 errors of AddressSanitizer in the tests of the crates that have it",
        how: How::Task(fuzz::sanitize),
        rest: "ThreadSanitizer and Miri, which need a standard library or a component that the stable \
               compiler does not come with; kernels for instruction sets that the CPU lacks, which \
               `cargo xtask emulate` runs",
    },
];
