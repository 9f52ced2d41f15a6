//! Routes as text-embeddings-inference has them.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use op_dbus_api::option;
use serde::{Deserialize, Serialize};
use zbus::Variant;

use crate::Gateway;
use crate::embed::{Input, Inputs, Wanted, check_texts, embed as embed_inputs, no_zero};
use crate::refusal::Refusal;
use crate::work::Work;

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
    fn truncate(self, truncate: Option<bool>) -> &'static str {
        match (truncate, self) {
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
    #[serde(default)]
    truncation_direction: Direction,
    prompt_name: Option<String>,
    dimensions: Option<u32>,
}

pub async fn embed(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Embed>,
) -> Result<Response, Refusal> {
    let inputs = Inputs::try_from(asked.inputs)?;
    permit.for_texts(inputs.len())?;
    let wanted = Wanted {
        // As text-embeddings-inference does it, whatever the model does.
        normalize: Some(asked.normalize.unwrap_or(true)),
        truncate: Some(asked.truncation_direction.truncate(asked.truncate)),
        prompt: checked(asked.prompt_name)?,
        dimensions: asked.dimensions,
        ..Wanted::default()
    };
    let embedded = embed_inputs(&gateway, &inputs, &wanted).await?;
    let rows: Vec<Vec<f32>> = embedded.rows().collect();
    permit.reply_with(&rows, embedded.truncated.len())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Similarity {
    inputs: Sentences,
    #[serde(default)]
    parameters: Parameters,
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
    #[serde(default)]
    truncation_direction: Direction,
    prompt_name: Option<String>,
}

pub async fn similarity(
    State(gateway): State<Arc<Gateway>>,
    Work { asked, mut permit }: Work<Similarity>,
) -> Result<Response, Refusal> {
    let Similarity { inputs: Sentences { source_sentence, sentences }, parameters } = asked;
    if sentences.is_empty() {
        return Err(Refusal::invalid("sentences is an empty list; send at least one text"));
    }
    let texts = std::iter::once(source_sentence).chain(sentences).collect::<Vec<_>>();
    permit.for_texts(texts.len())?;
    let wanted = Wanted {
        truncate: Some(parameters.truncation_direction.truncate(parameters.truncate)),
        prompt: checked(parameters.prompt_name)?,
        ..Wanted::default()
    };
    let embedded = embed_inputs(&gateway, &Inputs::texts(texts)?, &wanted).await?;
    permit.reply_with(&embedded.cosines(), embedded.truncated.len())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rerank {
    query: String,
    texts: Vec<String>,
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Direction,
    /// Scores are cosines in either case.
    #[serde(default, rename = "raw_scores")]
    _raw_scores: bool,
    #[serde(default)]
    return_text: bool,
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
        return Err(Refusal::invalid("texts is an empty list; send at least one"));
    }
    let texts = std::iter::once(asked.query).chain(asked.texts).collect::<Vec<_>>();
    permit.for_texts(texts.len())?;
    let truncate = Some(asked.truncation_direction.truncate(asked.truncate));
    let inputs = Inputs::texts(texts)?;
    let wanted = Wanted { truncate, ..Wanted::default() };
    let embedded = embed_inputs(&gateway, &inputs, &wanted).await?;
    let text = |index: usize| match &inputs {
        Inputs::Texts(texts) if asked.return_text => texts.get(index + 1).map(String::as_str),
        _ => None,
    };
    let cosines = embedded.cosines().into_iter().enumerate();
    let mut ranks: Vec<Rank<'_>> =
        cosines.map(|(index, score)| Rank { index, score, text: text(index) }).collect();
    ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
    permit.reply_with(&ranks, embedded.truncated.len())
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
            return Err(Refusal::invalid("inputs is an empty list; send at least one text"));
        }
        Texts::Many(texts) => texts,
    };
    permit.for_texts(texts.len())?;
    check_texts(&texts)?;
    let prompt = checked(asked.prompt_name)?;
    let options: HashMap<&str, Variant<'_>> =
        prompt.iter().map(|prompt| (option::PROMPT, Variant::from(prompt.as_str()))).collect();
    let mut lease = gateway.bus.lease().await?;
    let embedder = lease.embedder().await?;
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    let tokens = lease.answer(embedder.tokenize(&borrowed, options)).await?;
    let specials = asked.add_special_tokens.unwrap_or(true);
    let tokens: Vec<Vec<Token>> = tokens
        .into_iter()
        .map(|tokens| tokens.into_iter().filter(|token| specials || !token.2).map(token).collect())
        .collect();
    permit.reply(&tokens)
}

fn token((id, text, special, start, stop): (u32, String, bool, u32, u32)) -> Token {
    let place = |at| (!special).then_some(at);
    Token { id, text, special, start: place(start), stop: place(stop) }
}

fn checked(prompt: Option<String>) -> Result<Option<String>, Refusal> {
    match prompt {
        Some(prompt) if prompt.contains('\0') => Err(no_zero("prompt_name")),
        prompt => Ok(prompt),
    }
}
