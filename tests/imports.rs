//! Pending.
pub fn tests() -> Vec<crate::harness::registry::Test> { vec![] }
