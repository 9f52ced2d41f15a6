//! The engine as a library, on the simulator: calls, limits, faults and the end.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

mod around;
mod cache;
mod calls;
mod costs;
mod deadlines;
mod faults;
mod limits;
mod losses;
mod out_of_memory;
mod pools;
mod presence;
mod refusals;
mod reserve;
mod sinks;
mod sleep;
mod starts;
mod support;
mod unread;
