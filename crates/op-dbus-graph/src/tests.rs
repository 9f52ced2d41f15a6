//! Tests over the whole crate, with models small enough to be made up on the spot.

mod cache;
mod compile;
mod exported;
mod hostile;
mod inspected;
mod tiny;
