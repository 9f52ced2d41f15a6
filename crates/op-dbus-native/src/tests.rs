//! The engine against a reference in 64-bit floats, on made-up models of odd sizes.

mod cache;
pub(crate) mod made_up;
mod reference;
mod vectors;
