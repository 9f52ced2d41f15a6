//! Routes that OpenAI's clients ask.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Gateway;
use crate::embed::{Embedded, Wanted, embed};
use crate::input::{Input, Inputs};
use crate::limits;
use crate::models::{Offered, offered, unknown};
use crate::refusal::Refusal;
use crate::work::Work;

/// A request for embeddings. What it does not know is refused, not ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embeddings {
    input: Input,
    model: Option<String>,
    encoding_format: Option<String>,
    dimensions: Option<u32>,
    /// For whom the client asks; nothing is done with it here.
    #[serde(rename = "user")]
    _user: Option<String>,
}

#[derive(Clone, Copy)]
enum Encoding {
    Float,
    Base64,
}

impl Encoding {
    fn of(name: Option<&str>) -> Result<Self, Refusal> {
        match name {
            None | Some("float") => Ok(Self::Float),
            Some("base64") => Ok(Self::Base64),
            Some(_) => {
                let message = "encoding_format is neither float nor base64; send one of these";
                Err(Refusal::invalid(message).about("encoding_format"))
            }
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    /// Little-endian 32-bit floating point numbers.
    Base64(String),
}

#[derive(Serialize)]
struct Datum {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Datum>,
    model: String,
    usage: Usage,
    op_dbus: Extra,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// What OpenAI's shape has no place for; its clients pass over it.
#[derive(Serialize)]
struct Extra {
    vector_space: String,
    dimensions: usize,
    provider: String,
    truncated: Vec<usize>,
    cached: u64,
}

pub async fn embeddings(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Embeddings>,
) -> Result<Response, Refusal> {
    let encoding = Encoding::of(asked.encoding_format.as_deref())?;
    let inputs = Inputs::try_from(asked.input).map_err(|refusal| refusal.about("input"))?;
    permit.for_texts(inputs.weight()).await?;
    let wanted = gateway.models.wanted(&gateway.bus, asked.model.as_deref()).await?;
    let wanted = Wanted { dimensions: asked.dimensions, ..wanted };
    let embedded = embed(&gateway, &inputs, &wanted).await?;
    drop(inputs);
    permit.reply(&list(embedded, encoding))
}

fn list(embedded: Embedded, encoding: Encoding) -> List {
    let vectors: Vec<Vector> = match encoding {
        Encoding::Float => embedded.rows().map(Vector::Numbers).collect(),
        Encoding::Base64 => {
            embedded.row_bytes().map(|row| Vector::Base64(STANDARD.encode(row))).collect()
        }
    };
    let datum = |(index, embedding)| Datum { object: "embedding", index, embedding };
    let Embedded { dimensions, tokens, truncated, cached, model, space, provider, .. } = embedded;
    List {
        object: "list",
        data: vectors.into_iter().enumerate().map(datum).collect(),
        model,
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
        op_dbus: Extra { vector_space: space, dimensions, provider, truncated, cached },
    }
}

pub async fn models(State(gateway): State<Arc<Gateway>>) -> Result<Json<Value>, Refusal> {
    let models = all(&gateway).await?;
    let models: Vec<Value> = models.iter().map(|model| model.json()).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

pub async fn model(
    State(gateway): State<Arc<Gateway>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Refusal> {
    // What is no text is no name either.
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let models = all(&gateway).await?;
    match models.iter().find(|model| model.id() == id) {
        Some(model) => Ok(Json(model.json())),
        None => Err(unknown(&id, &models)),
    }
}

async fn all(gateway: &Gateway) -> Result<Arc<Vec<Offered>>, Refusal> {
    let ask = async { offered(&mut gateway.bus.lease().await?).await.map(Arc::new) };
    gateway.asked.models.answer_within(limits::MODELS_TIME, ask).await
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use futures_util::StreamExt;
    use tokio::sync::mpsc::unbounded_channel;
    use zbus::connection::Builder;
    use zbus::{Guid, MessageStream};

    use super::*;

    #[tokio::test]
    async fn a_service_that_hangs_does_not_keep_who_asks_for_models_for_two_minutes() {
        let (services, mut asked) = unbounded_channel();
        let connect = move || {
            let (near, far) = UnixStream::pair().unwrap();
            services.send(far).unwrap();
            Builder::unix_stream(near).p2p()
        };
        let gateway = Gateway::new(Arc::new(connect), None, true);
        // It hears the question, and says nothing. From then on the clock goes from one timer to the next.
        let silent = async {
            let far = Builder::unix_stream(asked.recv().await.unwrap());
            let service = far.server(Guid::generate()).p2p().build().await.unwrap();
            MessageStream::from(&service).next().await.unwrap().unwrap();
            tokio::time::pause();
            service
        };
        let (answer, _service) = tokio::join!(all(&gateway), silent);
        let said = answer.err().unwrap();
        assert!(said.message().contains("did not answer within 30 s"), "{said:?}");
    }
}
