//! Tests over the whole crate, with models small enough to be made up on the spot.

mod cache;
mod compile;
mod dense;
mod exported;
mod families;
mod half;
mod hostile;
mod inspected;
mod tiny;
