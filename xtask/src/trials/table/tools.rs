//! What tools find that look for holes by themselves.

use super::{How, Trial};
use crate::{fuzz, sanitize};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T52",
        name: "fuzz",
        promise: "no bytes from outside panic, hang or damage memory: options, descriptors, direct \
                  connections, files, bodies, workers, servers",
        bar: "0 inputs that do harm; none takes 10 s or 2 GiB; of a worker's vectors none is taken that is not finite, \
              and the gateway asks the service for nothing but what its contract has",
        how: How::Build(fuzz::try_out),
        rest: "a night: full is ten minutes for each target, quick 5 s",
    },
    Trial {
        number: "T53",
        name: "sanitizers",
        promise: "what is `unsafe` reads and writes nothing but its own memory, and no thread races another",
        bar: "0 errors of AddressSanitizer, ThreadSanitizer and Miri in the tests of the crates that have it",
        how: How::Build(sanitize::try_out),
        rest: "Miri runs the native engine alone, on its portable kernels: shared memory, seals and \
               processes are the kernel's. Kernels for instruction sets that the CPU lacks are run by \
               `cargo xtask emulate`",
    },
];
