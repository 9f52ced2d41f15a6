//! No library: the tests are in `integration.rs`.
