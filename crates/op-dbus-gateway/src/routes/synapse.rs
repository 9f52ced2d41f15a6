//! `POST /add`, as SynapseNet's guide to embeddings has it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::Gateway;
use crate::embed::{Wanted, embed};
use crate::input::Inputs;
use crate::refusal::Refusal;
use crate::work::Work;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    text: String,
}

#[derive(Serialize)]
struct Added {
    embedding: Vec<f32>,
    dimensions: usize,
    model: String,
    vector_space: String,
    tokens: u64,
    truncated: bool,
    /// Whether the vector came from the service's cache.
    cached: bool,
    /// There is no index here that the text could have been added to.
    stored: bool,
}

pub async fn add(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Add>,
) -> Result<Response, Refusal> {
    let inputs = Inputs::texts(vec![asked.text])?;
    permit.for_texts(1).await?;
    let embedded = embed(&gateway, &inputs, &Wanted::default()).await?;
    let embedding = embedded.rows().next().unwrap_or_default();
    permit.reply(&Added {
        embedding,
        dimensions: embedded.dimensions,
        tokens: embedded.tokens,
        truncated: !embedded.truncated.is_empty(),
        cached: embedded.cached > 0,
        model: embedded.model,
        vector_space: embedded.space,
        stored: false,
    })
}
