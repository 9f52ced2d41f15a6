//! More than one machine.

use super::{Clock, How, Trial};

pub const TRIALS: &[Trial] = &[Trial {
    number: "T51",
    name: "fleet-cut-off",
    promise: "behind HAProxy a gateway that is cut off, killed or stopped under load costs no request, \
              and takes requests again when it is back",
    bar: "0 failed after the retries of HAProxy and of the client, 0 vectors of another text; p99 and shares stated, \
          the share of who is back above 0",
    how: How::Program(Clock::Timed),
    rest: "machines of their own: three network namespaces share one machine's cores",
}];
