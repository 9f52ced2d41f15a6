//! Routes as text-embeddings-inference has them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use op_dbus_api::option;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zbus::Variant;

use crate::Gateway;
use crate::embed::{Wanted, embed as embed_inputs, options, passes};
use crate::input::{Input, Inputs, check_texts, no_zero};
use crate::limits;
use crate::models::status;
use crate::object::Object;
use crate::refusal::Refusal;
use crate::work::{Work, write};

/// Which end is cut of a text that is too long.
#[derive(Clone, Copy, Default, Deserialize)]
pub enum Direction {
    #[serde(rename = "Left", alias = "left")]
    Left,
    #[default]
    #[serde(rename = "Right", alias = "right")]
    Right,
}

impl Direction {
    /// The option of the bus: with `truncate` false a text that is too long is refused.
    fn truncate(direction: Option<Self>, truncate: Option<bool>) -> &'static str {
        match (truncate, direction.unwrap_or_default()) {
            (Some(false), _) => "error",
            (_, Self::Left) => "start",
            (_, Self::Right) => "end",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embed {
    inputs: Input,
    normalize: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
    dimensions: Option<u32>,
    /// What clients of Hugging Face's own service tell that, of models that it may have to load first.
    #[serde(rename = "options")]
    _options: Option<Object<IgnoredAny>>,
}

pub async fn embed(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Embed>,
) -> Result<Response, Refusal> {
    let inputs = Inputs::try_from(asked.inputs)?;
    let wanted = Wanted {
        // As text-embeddings-inference does it, whatever the model does.
        normalize: Some(asked.normalize.unwrap_or(true)),
        truncate: Some(Direction::truncate(asked.truncation_direction, asked.truncate)),
        prompt: checked(asked.prompt_name)?,
        dimensions: asked.dimensions,
        ..Wanted::default()
    };
    permit.for_texts(inputs.weight()).await?;
    let embedded = embed_inputs(&gateway, &inputs, &wanted).await?;
    let rows: Vec<Vec<f32>> = embedded.rows().collect();
    permit.reply_with(&rows, &embedded)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Similarity {
    inputs: Object<Sentences>,
    parameters: Option<Object<Parameters>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sentences {
    source_sentence: String,
    sentences: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
}

pub async fn similarity(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Similarity>,
) -> Result<Response, Refusal> {
    let Similarity { inputs: Object(Sentences { source_sentence, sentences }), parameters } = asked;
    let parameters = parameters.map(|Object(parameters)| parameters).unwrap_or_default();
    if sentences.is_empty() {
        return Err(Refusal::empty("sentences is an empty list; send at least one text"));
    }
    let inputs = Inputs::compared("source_sentence", source_sentence, sentences)?;
    let wanted = Wanted {
        truncate: Some(Direction::truncate(parameters.truncation_direction, parameters.truncate)),
        prompt: checked(parameters.prompt_name)?,
        ..Wanted::default()
    };
    permit.for_texts(inputs.len()).await?;
    let embedded = embed_inputs(&gateway, &inputs, &wanted).await?;
    permit.reply_with(&embedded.cosines(), &embedded)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rerank {
    query: String,
    texts: Vec<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    /// Scores are cosines in either case.
    #[serde(rename = "raw_scores")]
    _raw_scores: Option<bool>,
    return_text: Option<bool>,
    /// How many ranks are wanted, as some of its clients ask.
    top_n: Option<u32>,
}

#[derive(Serialize)]
struct Rank<'a> {
    index: usize,
    score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

pub async fn rerank(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Rerank>,
) -> Result<Response, Refusal> {
    if asked.texts.is_empty() {
        return Err(Refusal::empty("texts is an empty list; send at least one"));
    }
    let inputs = Inputs::compared("query", asked.query, asked.texts)?;
    permit.for_texts(inputs.len()).await?;
    let truncate = Some(Direction::truncate(asked.truncation_direction, asked.truncate));
    let wanted = Wanted { truncate, ..Wanted::default() };
    let embedded = embed_inputs(&gateway, &inputs, &wanted).await?;
    let text = |index: usize| {
        let text = inputs.texts.get(index + 1).filter(|_| asked.return_text.unwrap_or(false));
        text.map(String::as_str)
    };
    let cosines = embedded.cosines().into_iter().enumerate();
    let mut ranks: Vec<Rank<'_>> =
        cosines.map(|(index, score)| Rank { index, score, text: text(index) }).collect();
    ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
    if let Some(count) = asked.top_n {
        ranks.truncate(count as usize);
    }
    permit.reply_with(&ranks, &embedded)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenize {
    inputs: Texts,
    add_special_tokens: Option<bool>,
    prompt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "the inputs must be a text or a list of texts")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(Serialize)]
struct Token {
    id: u32,
    text: String,
    special: bool,
    start: Option<u32>,
    stop: Option<u32>,
}

pub async fn tokenize(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Tokenize>,
) -> Result<Response, Refusal> {
    let texts = match asked.inputs {
        Texts::One(text) => vec![text],
        Texts::Many(texts) if texts.is_empty() => {
            return Err(Refusal::empty("inputs is an empty list; send at least one text"));
        }
        Texts::Many(texts) => texts,
    };
    check_texts(&texts)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let wanted = Wanted { prompt: checked(asked.prompt_name)?, ..Wanted::default() };
    permit.for_tokens(texts.len(), bytes(&texts)).await?;
    let deadline = Instant::now() + limits::ANSWER_TIME;
    let specials = asked.add_special_tokens.unwrap_or(true);
    let mut lease = gateway.bus.lease().await?;
    let embedder = lease.embedder().await?;
    // Written as they come: as values they would take several times as much.
    let (mut json, mut done) = (b"[".to_vec(), 0);
    // Of the model of the first call, where there are several.
    let mut space = None;
    // What is still to be done, the next of it last.
    let mut parts = vec![&texts[..]];
    while let Some(part) = parts.pop() {
        let answer = match fits(part) {
            true => lease.answer(embedder.tokenize(part, covered(&wanted, deadline))).await,
            // Nobody needs to be asked.
            false => Err(Refusal::too_large("")),
        };
        let tokens = match answer {
            Err(refusal) if refusal.code() != "too_large" => {
                // What is there already would be lost.
                if done > 0 && passes(&refusal, deadline).await {
                    parts.push(part);
                    continue;
                }
                return Err(refusal.about_texts(|number| format!("text {}", done + number)));
            }
            // With a prompt before each text the service takes fewer texts in a call.
            Err(_) if part.len() > 1 => {
                if space.is_none() {
                    space = Some(lease.answer(embedder.vector_space()).await?);
                }
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
                continue;
            }
            Err(refusal) => return Err(refusal.about_text(done)),
            Ok(tokens) => tokens,
        };
        for tokens in tokens {
            if done > 0 {
                json.push(b',');
            }
            let tokens = tokens.into_iter().filter(|token| specials || !token.2).map(token);
            write(&mut json, &tokens.collect::<Vec<Token>>())?;
            if json.len() > limits::TOKENS_REPLY_BYTES {
                let limit = limits::TOKENS_REPLY_BYTES;
                return Err(Refusal::too_large(format!(
                    "the reply would be larger than {limit} bytes; send the texts in several requests"
                )));
            }
            done += 1;
        }
    }
    json.push(b']');
    if space.is_some() && space != Some(lease.answer(embedder.vector_space()).await?) {
        return Err(Refusal::changed());
    }
    Ok(permit.reply_written(json))
}

/// The options of a call for tokens, each with the text that it stands for.
fn covered(wanted: &Wanted, deadline: Instant) -> HashMap<&'static str, Variant<'_>> {
    let mut options = options(wanted, deadline, "");
    options.insert(option::COVERED, true.into());
    options
}

/// Whether the tokens of these texts are asked for in one call.
fn fits(texts: &[&str]) -> bool {
    let is_small = bytes(texts) <= limits::TOKENIZED_BYTES_PER_CALL;
    texts.len() == 1 || (texts.len() <= limits::TEXTS_PER_CALL && is_small)
}

fn bytes(texts: &[&str]) -> usize {
    texts.iter().map(|text| text.len()).sum()
}

fn token((id, text, special, start, stop): (u32, String, bool, u32, u32)) -> Token {
    let place = |at| (!special).then_some(at);
    Token { id, text, special, start: place(start), stop: place(stop) }
}

/// What its clients ask before they send texts, as far as there is such a thing here.
pub async fn info(State(gateway): State<Arc<Gateway>>) -> Result<Json<Value>, Refusal> {
    let ask = async { status(&mut gateway.bus.lease().await?).await };
    let told = gateway.asked.runs.answer_within(limits::MODELS_TIME, ask).await?;
    if told["model"].as_str().is_none_or(str::is_empty) {
        let state = told["state"].as_str().unwrap_or_default();
        let message = format!("no model serves: the service's state is {state}; ask once one does");
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message));
    }
    Ok(Json(json!({
        "model_id": told["model"],
        "model_dtype": dtype(told["precision"].as_str().unwrap_or_default()),
        "model_type": {"embedding": {}},
        // What is more is refused, there as here.
        "max_concurrent_requests": limits::REQUESTS + limits::WAITING,
        "max_input_length": told["max_input_tokens"],
        "max_client_batch_size": limits::CLIENT_BATCH,
        "auto_truncate": true,
        "version": told["version"],
    })))
}

/// What is computed in, as Python's libraries call it.
fn dtype(precision: &str) -> &str {
    match precision {
        "f32" => "float32",
        "f16" => "float16",
        "bf16" => "bfloat16",
        other => other,
    }
}

fn checked(prompt: Option<String>) -> Result<Option<String>, Refusal> {
    match prompt {
        Some(prompt) if prompt.contains('\0') => Err(no_zero("prompt_name")),
        prompt => Ok(prompt),
    }
}
