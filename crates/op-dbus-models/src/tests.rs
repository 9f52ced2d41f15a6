//! Tests of the stores as a whole, on hand-made models; each module's own tests are beside it.

mod added;
mod amounts;
mod dense;
mod families;
pub(crate) mod fixture;
mod graphs;
mod hub_server;
mod hubs;
mod imports;
mod layouts;
mod occupied;
mod order;
mod owners;
mod pulls;
mod records;
mod runtimes;
mod tokenizers;
mod transformer;
mod unigrams;
