//! Routes, and who answers each.

mod openai;
mod service;
mod synapse;
mod tei;

use std::sync::Arc;

use axum::routing::{get, post};
use axum::{Router, middleware};

use crate::{Gateway, gate, page};

/// All routes behind the gate.
pub fn router(gateway: Arc<Gateway>) -> Router {
    let gate = middleware::from_fn_with_state(Arc::clone(&gateway), gate::pass);
    Router::new()
        // What text-embeddings-inference answers there for a model of this kind.
        .route("/", get(page::page).post(tei::embed))
        .route("/health", get(service::health))
        .route("/ready", get(service::ready))
        .route("/status", get(service::status))
        .route("/metrics", get(service::metrics))
        .route("/openapi.json", get(service::openapi))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{id}", get(openai::model))
        .route("/embed", post(tei::embed))
        .route("/similarity", post(tei::similarity))
        .route("/rerank", post(tei::rerank))
        .route("/tokenize", post(tei::tokenize))
        .route("/info", get(tei::info))
        .route("/add", post(synapse::add))
        .fallback(gate::no_route)
        .method_not_allowed_fallback(gate::no_method)
        .layer(gate)
        .with_state(gateway)
}
